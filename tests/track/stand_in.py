"""A stand-in for wandb's server, on the loopback: what one run needs, kept in memory.

It appends history at the offset that the client names, as we read the service to do.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Run:
    config: dict[str, Any] = field(default_factory=dict)
    group: str | None = None
    tags: list[str] = field(default_factory=list)
    history: list[str] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    exit_codes: list[int] = field(default_factory=list)
    preempting: bool = False

    def steps(self) -> list[int]:
        return [json.loads(line)["_step"] for line in self.history]


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.runs: dict[str, Run] = {}
        self.unknown: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self._answer({})

    def do_PUT(self) -> None:
        self._body()
        self._answer({})

    def do_POST(self) -> None:
        body = self._body()
        if self.path.endswith("/graphql"):
            self._answer({"data": self._graphql(body["query"], body.get("variables") or {})})
        elif self.path.endswith("/file_stream"):
            self._stream(self.path.split("/")[-2], body)
            self._answer({"exitcode": None, "limits": {}})
        else:
            self._answer({})

    def _graphql(self, query: str, given: dict[str, Any]) -> dict[str, Any]:
        runs = self.server.runs
        if "upsertBucket" in query:
            name = given.get("name") or given.get("id")
            new = name not in runs
            run = runs.setdefault(name, Run())
            if given.get("config"):
                run.config = json.loads(given["config"])
            run.group = given.get("groupName") or run.group
            run.tags = given.get("tags") or run.tags
            bucket = {
                "id": base64.b64encode(name.encode()).decode(),
                "name": name,
                "displayName": given.get("displayName"),
                "description": "",
                "sweepName": None,
                "historyLineCount": len(run.history),
                "config": json.dumps(run.config),
                "project": {"id": "p", "name": "demo", "entity": {"id": "e", "name": "me"}},
            }
            return {"upsertBucket": {"bucket": bucket, "inserted": new}}
        if "historyTail" in query:  # RunResumeStatus
            run = runs.get(given.get("name") or given.get("runName") or "")
            if run is None or not run.history:
                return {"model": {"id": "p", "name": "demo", "bucket": None}}
            bucket = {
                "id": "r",
                "name": given.get("name"),
                "summaryMetrics": json.dumps(run.summary),
                "displayName": "",
                "logLineCount": 0,
                "historyLineCount": len(run.history),
                "eventsLineCount": 0,
                "historyTail": json.dumps(run.history[-1:]),
                "eventsTail": "[]",
                "config": json.dumps(run.config),
                "tags": run.tags,
                "wandbConfig": json.dumps({"t": 1}),
                "runtime": 1,
            }
            return {"model": {"id": "p", "name": "demo", "bucket": bucket}}
        if "createRunFiles" in query:
            names = given.get("files") or []
            files = [
                {"name": n, "uploadUrl": f"{self.server.url}/put/{n}", "displayName": n}
                for n in names
            ]
            made = {"runID": "r", "uploadHeaders": [], "files": files}
            return {"createRunFiles": made}
        if "viewer" in query:
            viewer = {"id": "u", "entity": "me", "username": "me", "flags": "{}"}
            return {"viewer": {**viewer, "teams": {"edges": []}}}
        self.server.unknown.append(re.sub(r"\s+", " ", query)[:80])
        return {}

    def _stream(self, name: str, body: dict[str, Any]) -> None:
        run = self.server.runs.setdefault(name, Run())
        for file, piece in (body.get("files") or {}).items():
            if file == "wandb-history.jsonl":
                run.history[piece["offset"] :] = piece["content"]
            elif file == "wandb-summary.json" and piece["content"]:
                run.summary = json.loads(piece["content"][-1])
        run.preempting |= bool(body.get("preempting"))
        if body.get("complete"):
            run.exit_codes.append(body.get("exitcode", 0))

    def _body(self) -> Any:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            import gzip

            raw = gzip.decompress(raw)
        try:
            return json.loads(raw)
        except ValueError:
            return {}

    def _answer(self, value: Any) -> None:
        text = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
