/* Preloaded into a self-test to make llama.cpp misbehave as a wrongly compiled build does.
 *
 * INGOT_TEST_FAULT says how:
 *   SIGILL, SIGKILL  die of it when llama.cpp sets up its repacked weights (use_extra_bufts)
 *   hang             never return from there
 *   garbage          return wrong logits once it has set them up
 *   always           die of SIGSEGV whatever the settings
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int extra_buffers_used;

static int find_base(struct dl_phdr_info *info, size_t size, void *found) {
    (void)size;
    if (!strstr(info->dlpi_name, "libggml-base")) return 0;
    *(const char **)found = info->dlpi_name;
    return 1;
}

/* The library is loaded privately by Python, out of RTLD_NEXT's sight. */
static void *real(const char *symbol) {
    const char *path = NULL;
    dl_iterate_phdr(find_base, &path);
    return dlsym(dlopen(path, RTLD_NOLOAD | RTLD_LAZY), symbol);
}

static int fault_is(const char *name) {
    const char *fault = getenv("INGOT_TEST_FAULT");
    return fault && strcmp(fault, name) == 0;
}

void *ggml_backend_reg_get_proc_address(void *reg, const char *name) {
    if (strcmp(name, "ggml_backend_dev_get_extra_bufts") == 0) {
        extra_buffers_used = 1;
        if (fault_is("SIGILL")) raise(SIGILL);
        if (fault_is("SIGKILL")) raise(SIGKILL);
        if (fault_is("hang")) for (;;) pause();
    }
    void *(*next)(void *, const char *) =
        (void *(*)(void *, const char *))real("ggml_backend_reg_get_proc_address");
    return next(reg, name);
}

void ggml_backend_tensor_get_async(
    void *backend, const void *tensor, void *data, size_t offset, size_t size) {
    if (fault_is("always")) raise(SIGSEGV);
    void (*next)(void *, const void *, void *, size_t, size_t) =
        (void (*)(void *, const void *, void *, size_t, size_t))real("ggml_backend_tensor_get_async");
    next(backend, tensor, data, offset, size);
    if (extra_buffers_used && fault_is("garbage")) memset(data, 0, size / 2);
}
