"""A stand-in for wandb's server, on the loopback: runs, their history, and saved views, in memory.

It appends history at the offset that the client names, as we read the service to do; a line that
is sent again and differs is a conflict. `on_post` sees every request before it is answered.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Run:
    name: str = ""
    display_name: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    group: str | None = None
    job_type: str | None = None
    tags: list[str] = field(default_factory=list)
    history: list[str] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    exit_codes: list[int] = field(default_factory=list)
    preempting: bool = False
    conflicts: int = 0
    starts: int = 0

    def steps(self) -> list[int]:
        return [json.loads(line)["_step"] for line in self.history]

    def values(self, key: str) -> dict[int, Any]:
        rows = map(json.loads, self.history)
        return {row["_step"]: row[key] for row in rows if key in row}

    def plain_config(self) -> dict[str, Any]:
        return {k: v["value"] for k, v in self.config.items() if k != "_wandb"}

    @property
    def state(self) -> str:
        if not self.exit_codes:
            return "running"
        if self.preempting:
            return "preempted"
        return "finished" if self.exit_codes[-1] == 0 else "failed"


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.runs: dict[str, Run] = {}
        self.views: dict[str, dict[str, Any]] = {}
        self.unknown: list[str] = []
        self.queries: list[str] = []
        self.refuse: int | None = None
        """Answer everything with this status."""
        self.silent = threading.Event()
        """While it is set, nothing is answered."""
        self.on_post: Callable[[str], None] = lambda what: None
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:  # clients are killed on purpose
        ...


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
        what = "graphql" if self.path.endswith("/graphql") else self.path.rpartition("/")[2]
        self.server.on_post(what)
        while self.server.silent.is_set():
            threading.Event().wait(0.05)
        if self.server.refuse:
            message = "permission denied" if self.server.refuse < 500 else "out of order"
            self._answer({"errors": [{"message": message}]}, self.server.refuse)
        elif what == "graphql":
            self._answer({"data": self._graphql(body["query"], body.get("variables") or {})})
        elif what == "file_stream":
            self._stream(self.path.split("/")[-2], body)
            self._answer({"exitcode": None, "limits": {}})
        else:
            self._answer({})

    def _graphql(self, query: str, given: dict[str, Any]) -> dict[str, Any]:
        found = re.search(r"(?:query|mutation)\s+(\w+)", query)
        name = found[1] if found else ""
        self.server.queries.append(name)
        runs = self.server.runs
        known = given.get("name") or given.get("runName") or given.get("run") or given.get("id")
        run = runs.get(str(known))
        if "upsertBucket" in query:
            return self._upsert(str(known), given)
        if "historyTail" in query:  # RunResumeStatus
            if run is None or not run.history:
                return {"model": {"id": "p", "name": "demo", "bucket": None}}
            return {"model": {"id": "p", "name": "demo", "bucket": resume_status(run)}}
        if "createRunFiles" in query:
            names = given.get("files") or []
            files = [
                {"name": n, "uploadUrl": f"{self.server.url}/put/{n}", "displayName": n}
                for n in names
            ]
            return {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}
        if name == "Runs":
            return {"project": self._runs(given)}
        if name == "RunHistoryKeys":
            last = run.steps()[-1] if run and run.history else -1
            return {"project": {"run": {"historyKeys": {"lastStep": last, "keys": {}}}}}
        if name == "RunParquetHistory":
            live = [{"_step": step} for step in run.steps()] if run else []
            return {"project": {"run": {"parquetHistory": {"parquetUrls": [], "liveData": live}}}}
        if name == "HistoryPage":
            assert run is not None
            low, high = given["minStep"], given["maxStep"]
            lines = [
                line
                for step, line in zip(run.steps(), run.history, strict=True)
                if low <= step < high
            ]
            return {"project": {"run": {"history": lines[: given["pageSize"]]}}}
        if name == "UpsertView2":
            return self._save_view(given)
        if name == "View":
            view = self.server.views.get(given["viewName"])
            edges = [{"node": {**view, "displayName": view["displayName"]}}] if view else []
            return {"project": {"allViews": {"edges": edges}}}
        if "viewer" in query.lower() or "defaultentity" in query.lower():
            viewer = {"id": "u", "entity": "me", "username": "me", "flags": "{}", "name": "me"}
            return {"viewer": {**viewer, "teams": {"edges": []}}}
        self.server.unknown.append(re.sub(r"\s+", " ", query)[:200])
        return {}

    def _upsert(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        runs = self.server.runs
        new = name not in runs
        run = runs.setdefault(name, Run(name=name))
        run.starts += 1
        if given.get("config"):
            run.config = json.loads(given["config"])
        run.group = given.get("groupName") or run.group
        run.job_type = given.get("jobType") or run.job_type
        run.display_name = given.get("displayName") or run.display_name
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

    def _runs(self, given: dict[str, Any]) -> dict[str, Any] | None:
        if given["project"] == "nowhere":
            return None
        group = json.loads(given.get("filters") or "{}").get("group")
        found = [r for r in self.server.runs.values() if group in (None, r.group)]
        start, many = int(given.get("cursor") or 0), int(given.get("perPage") or 50)
        edges = [
            {"node": node(run), "cursor": str(start + i + 1)}
            for i, run in enumerate(found[start : start + many])
        ]
        more = {"endCursor": str(start + many), "hasNextPage": start + many < len(found)}
        return {"runCount": len(found), "readOnly": False, "edges": [], "internalId": "1",
                "runs": {"edges": edges, "pageInfo": more}}  # fmt: skip

    def _save_view(self, given: dict[str, Any]) -> dict[str, Any]:
        name = given["name"]
        new = name not in self.server.views
        view = {"id": f"id-{name}", "name": name, "displayName": given["displayName"]}
        self.server.views[name] = {**view, "spec": given["spec"]}
        return {"upsertView": {"view": view, "inserted": new}}

    def _stream(self, name: str, body: dict[str, Any]) -> None:
        run = self.server.runs.setdefault(name, Run(name=name))
        for file, piece in (body.get("files") or {}).items():
            if file == "wandb-history.jsonl":
                at, lines = piece["offset"], piece["content"]
                held = run.history[at : at + len(lines)]
                run.conflicts += sum(a != b for a, b in zip(held, lines, strict=False))
                run.conflicts += at > len(run.history)  # a hole
                run.history[at : at + len(lines)] = lines
            elif file == "wandb-summary.json" and piece["content"]:
                run.summary = json.loads(piece["content"][-1])
        run.preempting |= bool(body.get("preempting"))
        if body.get("complete"):
            run.exit_codes.append(body.get("exitcode", 0))
            run.preempting &= body.get("exitcode", 0) != 0

    def _body(self) -> Any:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            raw = gzip.decompress(raw)
        try:
            return json.loads(raw)
        except ValueError:
            return {}

    def _answer(self, value: Any, status: int = 200) -> None:
        text = json.dumps(value).encode()
        with contextlib.suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)


def resume_status(run: Run) -> dict[str, Any]:
    return {
        "id": "r",
        "name": run.name,
        "summaryMetrics": json.dumps(run.summary),
        "displayName": run.display_name,
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


def node(run: Run) -> dict[str, Any]:
    last = run.steps()[-1] if run.history else -1
    return {
        "id": f"id-{run.name}",
        "projectId": "1",
        "tags": run.tags,
        "name": run.name,
        "displayName": run.display_name,
        "sweepName": None,
        "state": run.state,
        "config": json.dumps(run.config),
        "group": run.group,
        "jobType": run.job_type,
        "commit": None,
        "readOnly": False,
        "createdAt": "2026-01-01T00:00:00Z",
        "heartbeatAt": "2026-01-01T00:00:00Z",
        "description": "",
        "notes": "",
        "systemMetrics": "{}",
        "summaryMetrics": json.dumps(run.summary),
        "historyLineCount": len(run.history),
        "user": {"name": "me", "username": "me"},
        "historyKeys": {"lastStep": last, "keys": {}},
    }
