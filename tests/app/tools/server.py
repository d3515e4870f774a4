"""An MCP server over stdio in plain JSON-RPC: `python server.py [HOW]`, where HOW says what it does
wrong. Its tools: `zone` (one allowed argument), `say` (any text), `act` (does what HOW says)."""

import json
import os
import sys
import time

HOW = sys.argv[1] if len(sys.argv) > 1 else "good"
ZONE = {
    "type": "object",
    "properties": {"name": {"enum": ["UTC"]}},
    "required": ["name"],
    "additionalProperties": False,
}
SAY = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOLS = [
    {"name": "zone", "description": "The offset of a time zone.", "inputSchema": ZONE},
    {"name": "say", "description": "Return the text.", "inputSchema": SAY},
    {"name": "act", "inputSchema": {"type": "object"}},
    {"name": "bad name/here", "inputSchema": {"type": "object"}},
]
if HOW == "zone":
    del TOOLS[1:]


def send(**message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(value):
    return {"content": [{"type": "text", "text": value}]}


def act(id):
    if HOW == "die":
        sys.stderr.write("out of \x1b[31mluck\n")
        sys.exit(3)
    if HOW == "kill":
        sys.stderr.write("ready\n")
        os.kill(os.getpid(), 9)
    if HOW == "hang":
        time.sleep(3600)
    if HOW == "flood":
        while True:
            send(method="notifications/message", params={"level": "info", "data": "x" * 1000})
    if HOW == "endless":
        while True:
            sys.stdout.write("x" * 65536)
    if HOW == "noise":
        sys.stdout.write("not JSON\n[1, 2]\n" + "[" * 100000 + "\n")
        return text("quiet")
    if HOW == "big":
        return text("é" + "x" * (10 * 2**20))
    if HOW == "escape":
        return text("\x1b]0;owned\x07\x1b[2Jred\r\n\u202eevil")
    if HOW == "error":
        return {**text("no such file"), "isError": True}
    if HOW == "image":
        picture = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
        return {"content": [picture], "structuredContent": {"a": 1}}
    if HOW == "pid":
        return text(str(os.getpid()))
    if HOW == "token":
        return text(os.environ.get("TOKEN", "none") + os.environ.get("INGOT_SECRET", " alone"))
    return text(HOW)


if HOW == "broken":
    sys.exit("no module named luck")
for line in sys.stdin:
    asked = json.loads(line)
    id, params = asked.get("id"), asked.get("params") or {}
    match asked.get("method"):
        case "initialize":
            if HOW == "mute":
                time.sleep(3600)
            known = {"name": "plain", "version": "1"}
            version = params["protocolVersion"]
            able = {"tools": {}}
            send(
                id=id,
                result={"protocolVersion": version, "capabilities": able, "serverInfo": known},
            )
        case "tools/list":
            send(id=id, result={"tools": TOOLS})
        case "tools/call":
            name, given = params["name"], params.get("arguments") or {}
            if name == "act":
                send(id=id, result=act(id))
            else:
                send(id=id, result=text("+00:00" if name == "zone" else given["text"]))
        case _ if id is not None:
            send(id=id, error={"code": -32601, "message": "Method not found"})
