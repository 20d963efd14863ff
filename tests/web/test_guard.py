"""Who may ask for what: paths that try to leave the data, wrong tokens, other hosts, origins and methods."""

from html import unescape
from itertools import product

import pytest

from tests.web.conftest import HOST, SECRET, TOKEN, Ask

UP = [
    "../",
    "..%2f",
    "%2e%2e/",
    "%2e%2e%2f",
    "%252e%252e%252f",
    "..\\",
    "..%5c",
    "....//",
    "..;/",
    "..%c0%af",
    "%c0%ae%c0%ae/",
    "..%00/",
    "./../",
]
BELOW = ["", "picture/", "picture/0/", "points/0/", "selection/", "images/class-0/"]
TARGETS = ["secret.txt", "etc/passwd", "images/class-0/001.png"]
TRAVERSALS = [f"/{TOKEN}/{below}{up * depth}{to}" for below, up, depth, to in product(BELOW, UP, (1, 6), TARGETS)]
ABSOLUTE = [f"/{TOKEN}/{start}{to}" for start, to in product(["/", "//", "file:///", "C:\\", "~/", "%2f"], TARGETS)]


def test_no_path_leaves_the_data(ask: Ask) -> None:
    tried = [*TRAVERSALS, *ABSOLUTE]
    assert len(tried) >= 200
    for path in tried:
        for method in ("GET", "POST"):
            answer = ask(method, path, {"origin": f"http://{HOST}"})
            assert answer.status in {403, 404, 405}, path
            assert SECRET.encode() not in answer.body
            assert b"root:" not in answer.body
            assert not answer.headers.get("content-type", "").startswith("image"), path


def test_names_of_files_are_not_addresses(ask: Ask) -> None:
    for path in ("images/secret.txt", "secret.txt", "picture/secret.txt/160", "picture/0/160/secret.txt", "style.css"):
        assert ask("GET", f"/{TOKEN}/{path}").status == 404


@pytest.mark.parametrize(
    "path",
    ["/", "", "/x/", f"/{TOKEN}", f"/{TOKEN[:-1]}/", f"/{TOKEN}0/", f"/{TOKEN.upper()}/", f"//{TOKEN}/", f"/?{TOKEN}/"],
)
def test_nothing_is_served_without_the_token(ask: Ask, path: str) -> None:
    assert ask("GET", path).status == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "evil.example:8000"},
        {"host": ""},
        {"host": "127.0.0.1:8000@evil.example"},
        {"host": "0.0.0.0:8000"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "https://127.0.0.1:8000"},
        {"origin": "http://127.0.0.1:8001"},
        {"origin": "http://localhost:8000"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
    ids=str,
)
def test_other_hosts_and_origins_are_refused(ask: Ask, headers: dict[str, str]) -> None:
    for path in ("", "picture/0/160", "labels"):
        answer = ask("GET", f"/{TOKEN}/{path}", headers)
        assert (answer.status, answer.body) == (403, b"forbidden")


def test_a_request_that_may_change_something_names_its_origin(ask: Ask) -> None:
    assert ask("POST", f"/{TOKEN}/save/csv", body=b"\0\0\0\0").status == 403
    assert ask("POST", f"/{TOKEN}/save/csv", {"origin": f"http://{HOST}"}, b"\0\0\0\0").status == 200


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "localhost:5", "127.0.0.1"])
def test_this_machine_is_served_through_a_tunnel_as_well(ask: Ask, host: str) -> None:
    for headers in ({"host": host}, {"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin"}):
        assert ask("GET", f"/{TOKEN}/", headers).status == 200


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "POST"])
def test_what_reads_answers_to_get_only(ask: Ask, method: str) -> None:
    for path in ("", "picture/0/160", "points/0/0", "neighbours/0", "clusters/0/2", "labels"):
        assert ask(method, f"/{TOKEN}/{path}", {"origin": f"http://{HOST}"}).status == 405
    for path in ("search", "selection/csv", "save/csv"):
        expected = {200} if method == "POST" else {405}
        assert ask(method, f"/{TOKEN}/{path}", {"origin": f"http://{HOST}"}).status in expected
        assert ask("GET", f"/{TOKEN}/{path}").status == 405


@pytest.mark.parametrize(
    "path",
    [
        "picture/40/160",
        "picture/-1/160",
        "picture/99999999999999999999/160",
        "picture/0/161",
        "picture/0",
        "picture/1.0/160",
        "neighbours/40",
        "image/40",
        "points/2/0",
        "map/2",
        "clusters/0/1",
        "clusters/0/201",
        "clusters/2/5",
        "clusters/0/5/other",
        "comparison/other",
    ],
)
def test_numbers_out_of_range_are_not_found(ask: Ask, path: str) -> None:
    assert ask("GET", f"/{TOKEN}/{path}").status == 404


def test_answers_forbid_what_they_do_not_need(ask: Ask) -> None:
    page = ask("GET", f"/{TOKEN}/")
    assert page.headers["content-security-policy"] == "frame-ancestors 'none'"
    text = unescape(page.body.decode())
    assert "default-src 'none'; img-src 'self' data: blob:; connect-src 'self'; style-src" in text
    assert "unsafe-eval" not in text
    picture = ask("GET", f"/{TOKEN}/picture/0/160")
    for answer in (page, picture):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert picture.headers["content-type"] == "image/jpeg"
