"""Web server of the dashboard, for this machine only: Dash pages and the files they link to."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from threading import Thread

from dash import Dash, Input, Output, dcc, html
from flask import Response, request
from werkzeug.serving import BaseWSGIServer, make_server

from perfharness.dashboard import history_page, live_page, pages
from perfharness.dashboard.known import KnownRuns
from perfharness.dashboard.parts import Component, Query, navigation, query_of, sentence
from perfharness.errors import PerfHarnessError, UsageError
from perfharness.files import reason_of
from perfharness.render.blocks import Document, Paragraph
from perfharness.render.html import TEMPLATES, chart_library, html_page

ADDRESS = "127.0.0.1"
HOSTS = (ADDRESS, "localhost")
"""Accepted host names. Others are refused, against DNS rebinding."""

POLICY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'self'; form-action 'self'"
"""The browser loads nothing from other hosts. Vega and Dash need inline styles and `eval`."""

INDEX = """<!doctype html>
<html lang="en">
<head>{%metas%}<title>{%title%}</title>{%css%}<style>STYLE</style></head>
<body>{%app_entry%}{%config%}<script src="CHARTS"></script>{%scripts%}{%renderer%}</body>
</html>"""

Layout = Callable[[Query, KnownRuns], Component]
LAYOUTS: Mapping[str, Layout] = {
    "/": history_page.layout,
    "/compare": pages.compare_layout,
    "/run": pages.run_layout,
    "/live": live_page.layout,
}

File = Callable[[Query, KnownRuns], str]
FILES: Mapping[str, tuple[File, str]] = {
    "/report": (pages.report_of, "text/html"),
    "/comparison": (pages.comparison_of, "text/html"),
    "/history.csv": (history_page.csv_of, "text/csv"),
}
"""Files that the pages link to, with their MIME types."""


def make_app(known: KnownRuns) -> Dash:
    """Make the app for these runs."""
    app = Dash(
        __name__,
        title="perfharness",
        update_title=None,
        assets_folder="",
        include_assets_files=False,
        suppress_callback_exceptions=True,
        meta_tags=[
            {"name": "viewport", "content": "width=device-width, initial-scale=1"},
            {"name": "color-scheme", "content": "light dark"},
        ],
    )
    style = [TEMPLATES / "style.css", Path(__file__).parent / "dashboard.css"]
    library = chart_library().encode()
    app.index_string = INDEX.replace("STYLE", "".join(file.read_text(encoding="utf-8") for file in style)).replace(
        "CHARTS", f"/charts.js?{sha256(library).hexdigest()[:12]}"
    )
    app.layout = html.Main([dcc.Location(id="url", refresh="callback-nav"), html.Div(id="page")])

    def show(path: str, search: str) -> Component:
        layout = LAYOUTS.get(path)
        try:
            content = (
                [sentence(f"There is no page {path}.", "error")] if layout is None else layout(query_of(search), known)
            )
        except (PerfHarnessError, OSError) as error:
            content = [sentence(str(error), "error")]
        return [navigation(path), *content]

    app.callback(Output("page", "children"), Input("url", "pathname"), Input("url", "search"))(show)
    history_page.register(app)
    pages.register(app)
    live_page.register(app, known)
    app.server.before_request(_refuse_other_hosts)
    app.server.before_request(partial(_begin_report_of_page, known))
    app.server.after_request(_with_policy)
    script = partial(Response, library, mimetype="text/javascript", headers={"Cache-Control": "max-age=31536000"})
    app.server.add_url_rule("/charts.js", "charts", script)
    for path, (make, kind) in FILES.items():
        app.server.add_url_rule(path, path, _view(make, kind, known))
    return app


def _view(make: File, kind: str, known: KnownRuns) -> Callable[[], Response]:
    """Make a view that answers with the file for a query, or with a page that gives the error."""

    def view() -> Response:
        try:
            return Response(make(query_of(request.query_string.decode()), known), mimetype=kind)
        except (PerfHarnessError, OSError) as error:
            page = html_page(Document("Not shown", "", [Paragraph(str(error), "error")]))
            return Response(page, status=404, mimetype="text/html")

    return view


def _refuse_other_hosts() -> Response | None:
    name = request.host.rpartition(":")[0] or request.host
    if name in HOSTS:
        return None
    return Response(f"The dashboard answers to {' and '.join(HOSTS)} only.\n", status=403, mimetype="text/plain")


def _begin_report_of_page(known: KnownRuns) -> None:
    if request.path == "/run":
        begin_report(request.args.get("run", ""), known)


def begin_report(run: str, known: KnownRuns) -> None:
    """Start making the report of a run, which its page requests half a second later."""

    def make() -> None:
        with suppress(PerfHarnessError, OSError):  # shown by the page
            pages.report_of({"run": [run]}, known)

    Thread(target=make, daemon=True).start()


def _with_policy(response: Response) -> Response:
    response.headers["Content-Security-Policy"] = POLICY
    response.headers["Cache-Control"] = response.headers.get("Cache-Control", "no-store")
    return response


def make_server_of(app: Dash, port: int) -> BaseWSGIServer:
    """Make a listening server on 127.0.0.1; port 0 takes a free one, see its `port`.

    Raises `UsageError` if the port is taken.
    """
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # no line per request
    try:
        listening = socket.create_server((ADDRESS, port))
    except OSError as error:
        raise UsageError(f"--port {port} cannot be used: {reason_of(error)}. Choose another port.") from error
    with listening:
        return make_server(ADDRESS, port, app.server, threaded=True, fd=listening.detach())
