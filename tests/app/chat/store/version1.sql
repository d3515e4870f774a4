-- What version 1 of the store wrote, as it was. Never changed: files like it may be about.
PRAGMA journal_mode = WAL;
CREATE TABLE chats (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    title TEXT NOT NULL DEFAULT '',
    created REAL NOT NULL,
    updated REAL NOT NULL,
    model TEXT,
    system TEXT,
    sampling TEXT NOT NULL DEFAULT '{}',
    leaf INTEGER,
    deleted_at REAL
);
CREATE INDEX chats_by_age ON chats (updated DESC, id DESC);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    chat INTEGER NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    parent INTEGER,
    role TEXT NOT NULL,
    state TEXT NOT NULL,
    created REAL NOT NULL,
    dropped INTEGER NOT NULL DEFAULT 0,
    model TEXT,
    file TEXT,
    runtime TEXT,
    figures TEXT,
    error TEXT,
    owner_pid INTEGER,
    owner_born REAL,
    attachments TEXT,
    text TEXT NOT NULL,
    token_ids BLOB NOT NULL DEFAULT x'',
    UNIQUE (chat, id),
    FOREIGN KEY (chat, parent) REFERENCES messages (chat, id) DEFERRABLE INITIALLY DEFERRED
);
CREATE INDEX messages_by_parent ON messages (chat, parent);
CREATE INDEX messages_streaming ON messages (id) WHERE state = 'streaming';
CREATE TABLE pieces (
    id INTEGER PRIMARY KEY,
    message INTEGER NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
    text TEXT NOT NULL,
    token_ids BLOB NOT NULL
);
CREATE INDEX pieces_by_message ON pieces (message, id);
INSERT INTO chats (id, title, created, updated, model, system, sampling, leaf, deleted_at) VALUES
    (1, 'Café', 1.5, 2.5, 'pebble', 'Be short.', '{"temperature": 0.5}', 3, NULL),
    (4, 'Gone', 1.5, 2.0, NULL, NULL, '{}', 4, 4102444800.0);
INSERT INTO messages
    (id, chat, parent, role, state, created, dropped, model, file, runtime, figures, error,
    owner_pid, owner_born, attachments, text, token_ids) VALUES
    (1, 1, NULL, 'user', 'done', 1.5, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    '[["a.txt", "attached"]]', 'Äpfel oder Birnen?', x''),
    (2, 1, 1, 'assistant', 'cut', 2.0, 0, 'pebble · q8_0', '/x.gguf', 'llamacpp',
    '{"prompt_tokens": 9, "cached_tokens": 0, "completion_tokens": 2, "ttft_s": 0.1,'
    || ' "prefill_tps": null, "decode_tps": 10.0, "total_s": 0.3, "finish_reason": "length"}',
    NULL, NULL, NULL, NULL, 'Birnen', x'0100000070110100'),
    (3, 1, 1, 'assistant', 'streaming', 2.5, 0, 'pebble · q8_0', '/x.gguf', 'llamacpp', NULL, NULL,
    1999999999, 1.0, NULL, '', x''),
    (4, 4, NULL, 'user', 'done', 2.0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    '天气', x'');
INSERT INTO pieces (id, message, text, token_ids) VALUES
    (1, 3, 'Äpfel, ', x'01000000'),
    (2, 3, 'weil', x'02000000');
PRAGMA user_version = 1;
