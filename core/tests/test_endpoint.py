import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ptrl.core import ConfigError
from ptrl.core.contracts.hooks import resolve
from ptrl.core.endpoint import EndpointError, OpenAIEndpoint
from ptrl.core.policy import ChatPolicy, Sampling

pytest.importorskip("httpx2")
pytest.importorskip("tenacity")

KEY = "sk-a-secret-that-nobody-may-see"
QUESTION = [{"role": "user", "content": "two and two?"}]


def completion(text="four", finish="stop", **message):
    choice = {"message": {"content": text, **message}, "finish_reason": finish}
    return 200, {"choices": [choice], "usage": {"completion_tokens": 7}}


class Server(ThreadingHTTPServer):
    """Answers each request with the next of `answers`; the last one stays.

    An answer is `(status, body)` or `(status, body, headers)`, or `HANG` or `DROP`.
    """

    request_queue_size = 64
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = [completion()]
        self.requests = []
        self.released = threading.Event()
        self.busy = threading.Semaphore(0)
        self.lock = threading.Lock()
        self.now, self.most = 0, 0
        self.barrier = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"


HANG, DROP = "hang", "drop"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.requests.append((self.path, body, dict(self.headers)))
            answer = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
            server.now += 1
            server.most = max(server.most, server.now)
        if server.barrier is not None:
            server.barrier.wait()
        with server.lock:
            server.now -= 1
        if answer == HANG:
            server.released.wait()
        if answer in (HANG, DROP):
            self.close_connection = True
            return
        status, content, *headers = answer
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in (headers[0] if headers else {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def connect(server):
    """Makes endpoints at the server, with no wait between tries."""
    made = []

    def run(**options):
        made.append(OpenAIEndpoint(server.url, "small", **{"retries": 2, "backoff": 0.0, **options}))
        return made[-1]

    yield run
    for endpoint in made:
        resolve(endpoint.close())


def ask(endpoint, *, stop=(), tools=(), limit=9, **sampling):
    return resolve(endpoint.reply(QUESTION, Sampling(**sampling), stop, tools, limit))


def refusal(endpoint):
    with pytest.raises(EndpointError) as caught:
        ask(endpoint)
    assert isinstance(caught.value, OSError)
    return str(caught.value)


def test_a_reply_is_text_finish_and_tokens(server, connect):
    endpoint = connect()
    assert isinstance(endpoint, ChatPolicy)
    reply = ask(endpoint)
    assert (reply.text, reply.finish, reply.tokens) == ("four", "stop", 7)


def test_how_tokens_are_chosen_is_passed_on(server, connect):
    ask(connect(), stop=("END",), tools=({"type": "function"},), limit=33, temperature=0.7, top_p=0.9)
    [(path, body, headers)] = server.requests
    assert path == "/v1/chat/completions"
    assert body == {
        "model": "small",
        "messages": QUESTION,
        "temperature": 0.7,
        "top_p": 0.9,
        "max_tokens": 33,
        "stop": ["END"],
        "tools": [{"type": "function"}],
    }
    assert "Authorization" not in headers


def test_what_is_empty_is_left_out(server, connect):
    ask(connect(), temperature=0.0)
    assert {"stop", "tools"}.isdisjoint(server.requests[0][1])
    assert server.requests[0][1]["temperature"] == 0.0


def test_a_reply_that_a_limit_cut_says_so(server, connect):
    server.answers = [completion(finish="length")]
    assert ask(connect()).finish == "length"


def test_tokens_are_zero_where_the_endpoint_does_not_count(server, connect):
    server.answers = [(200, {"choices": [{"message": {"content": "x"}}]})]
    assert ask(connect()).tokens == 0


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_may_pass_is_tried_again(server, connect, status):
    server.answers = [(status, b"busy"), (status, b"busy"), completion()]
    assert ask(connect()).text == "four"
    assert len(server.requests) == 3


def test_an_endpoint_that_stays_down_is_an_error_after_the_last_try(server, connect):
    server.answers = [(500, {"error": {"message": "out of memory"}})]
    assert refusal(connect()) == f"{server.url} answered with status 500: out of memory"
    assert len(server.requests) == 3


def test_a_connection_that_breaks_is_tried_again(server, connect):
    server.answers = [DROP, completion()]
    assert ask(connect()).text == "four"


def test_nobody_at_the_address_is_an_error(server, connect):
    endpoint = connect(retries=0)
    server.shutdown()
    server.server_close()
    assert "cannot be reached" in refusal(endpoint)


def test_a_request_has_a_deadline(server, connect):
    server.answers = [HANG]
    endpoint = connect(timeout=0.05, retries=1)
    assert refusal(endpoint) == f"{server.url} gave no answer within 0.05 s"
    assert len(server.requests) <= 2  # on a busy machine a request may not have arrived within its deadline


@pytest.mark.parametrize(("header", "wait"), [("0.25", 0.25), ("100000", 60.0), ("soon", None), ("-1", None)])
def test_the_endpoint_says_how_long_to_wait(server, connect, header, wait):
    waits = []

    async def note(seconds):
        waits.append(seconds)

    server.answers = [(429, b"", {"Retry-After": header}), completion()]
    endpoint = connect()
    endpoint._sleep = note
    ask(endpoint)
    assert waits == [0.0 if wait is None else wait]


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_what_will_not_pass_is_not_tried_again(server, connect, status):
    server.answers = [(status, {"error": {"message": "no such model"}})]
    assert f"answered with status {status}: no such model" in refusal(connect())
    assert len(server.requests) == 1


def test_a_redirect_is_not_followed_with_the_key(server, connect):
    server.answers = [(307, b"", {"Location": "http://elsewhere.example/v1"})]
    assert "use the URL that it redirects to: http://elsewhere.example/v1" in refusal(connect())


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ((200, b"<html>gateway</html>"), "answered what is not JSON: '<html>gateway</html>'"),
        ((200, b""), "answered what is not JSON"),
        ((200, b"\xff\xfe\x00"), "answered what is not JSON"),
        ((200, b"[]"), "answered what is no chat completion: []"),
        ((200, {"choices": []}), "answered what is no chat completion"),
        ((200, {"choices": [{"message": "text"}]}), "answered what is no chat completion"),
        ((200, {"choices": [None]}), "answered what is no chat completion"),
        (completion(None), "content is NoneType, not text"),
        (completion("", finish="content_filter"), "withheld the answer by its content filter"),
        (completion(None, tool_calls=[{}]), "structured tool calls"),
    ],
)
def test_a_malformed_answer_is_an_error_and_not_tried_again(server, connect, answer, shown):
    server.answers = [answer]
    assert shown in refusal(connect())
    assert len(server.requests) == 1


def test_an_error_shows_the_beginning_of_a_long_answer(server, connect):
    server.answers = [(200, b"x" * 1_000_000)]
    assert len(refusal(connect())) < 500


def test_the_key_is_sent_and_never_shown(server, connect, monkeypatch):
    monkeypatch.setenv("PTRL_TEST_KEY", KEY)
    server.answers = [
        completion(),
        (401, {"error": {"message": f"wrong key {KEY}"}}),
        (200, f"not JSON {KEY}".encode()),
        (200, {"echo": KEY}),
    ]
    endpoint = connect(api_key_env="PTRL_TEST_KEY")
    ask(endpoint)
    assert server.requests[0][2]["Authorization"] == f"Bearer {KEY}"
    refusals = [refusal(endpoint) for _ in range(3)]
    assert "wrong key ***" in refusals[0]
    assert not any(KEY in text for text in [*refusals, repr(endpoint)])


@pytest.mark.parametrize("value", [None, "", "  ", "säkret", "two\nlines"])
def test_a_key_that_cannot_be_used_is_refused_without_showing_it(monkeypatch, value):
    if value is None:
        monkeypatch.delenv("PTRL_TEST_KEY", raising=False)
    else:
        monkeypatch.setenv("PTRL_TEST_KEY", value)
    with pytest.raises(ConfigError, match="PTRL_TEST_KEY") as caught:
        OpenAIEndpoint("http://localhost/v1", "small", api_key_env="PTRL_TEST_KEY")
    assert not value or not value.strip() or value not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["localhost:8000", "ftp://host/v1", "http://", f"http://user:{KEY}@host/v1", f"http://host/v1?key={KEY}"],
)
def test_a_url_that_cannot_be_used_is_refused_without_showing_a_key(url):
    with pytest.raises(ConfigError) as caught:
        OpenAIEndpoint(url, "small")
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("suffix", ["/", "/chat/completions"])
def test_the_url_may_be_given_in_its_common_forms(suffix):
    endpoint = OpenAIEndpoint(f"http://localhost:1/v1{suffix}", "small")
    assert endpoint.url == "http://localhost:1/v1"
    resolve(endpoint.close())


def test_no_more_requests_are_in_flight_than_allowed(server, connect):
    import asyncio

    server.barrier = threading.Barrier(2)
    endpoint = connect(concurrency=2, retries=0)

    async def many():
        return await asyncio.gather(*(endpoint.reply(QUESTION, Sampling(), (), (), 9) for _ in range(10)))

    assert len(resolve(many())) == 10
    assert server.most == 2


@pytest.mark.parametrize("module", ["httpx2", "tenacity"])
def test_without_the_extra_the_hint_says_what_to_install(monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(EndpointError, match=r"pip install 'ptrl-core\[endpoint\]'"):
        OpenAIEndpoint("http://localhost/v1", "small")
