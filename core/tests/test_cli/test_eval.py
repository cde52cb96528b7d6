import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class Digits(BaseHTTPRequestHandler):
    """Answers digits below 5 rightly."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        digit = body["messages"][0]["content"].removeprefix("say ")
        text = digit if int(digit) < 5 else "?"
        good = body["model"] == "good"
        answer = {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}
        data = json.dumps(answer if good else {"error": {"message": "no such \x1b[31mmodel"}}).encode()
        self.send_response(200 if good else 400)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 64


@pytest.fixture
def endpoint(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = Server(("127.0.0.1", 0), Digits)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def run_folder(config, ptrl, tmp_path):
    assert ptrl("train", config).exit_code == 0
    return tmp_path / "runs" / "toy"


def test_a_runs_own_last_evaluation_is_repeated(run_folder, ptrl):
    result = ptrl("eval", run_folder, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    saved = [json.loads(line) for line in (run_folder / "evaluations.jsonl").read_text().splitlines()]
    for mine, theirs in zip(found["evaluations"], saved[-2:], strict=True):
        assert {**mine, "seconds": 0} == {**theirs, "seconds": 0}


def test_a_local_model_is_measured_by_a_config(config, run_folder, ptrl):
    result = ptrl("eval", "--config", config, "--model", run_folder / "model", "--tasks", 5, "--decoding", "greedy")
    assert result.exit_code == 0, result.output
    assert "test, greedy" in result.output
    assert "80.0%" in result.output
    assert "sampled" not in result.output


def test_an_endpoint_is_measured_by_a_config(config, endpoint, ptrl):
    result = ptrl("eval", "--config", config, "--endpoint", endpoint, "--model", "good", "--json", "--split", "train")
    assert result.exit_code == 0, result.output
    [greedy, sampled] = json.loads(result.stdout)["evaluations"]
    assert (greedy["split"], greedy["mean"], sampled["decoding"]) == ("train", 0.5, "sampled")


def test_an_endpoint_that_answers_nothing_is_no_zero(config, endpoint, ptrl):
    result = ptrl("eval", "--config", config, "--endpoint", endpoint, "--model", "bad", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)["evaluations"][0]
    assert (found["mean"], found["domains"]["digits"]["masked"]) == (None, 10)
    assert "20 rollouts got no verdict: EndpointError" in result.output
    assert "answered with status 400: no such model" in result.output


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ([], "name a run folder"),
        (["--config", "x.toml", "--endpoint", "http://localhost/v1"], "name the endpoint's model"),
        (["--config", "x.toml", "--model", "m", "--api-key-env", "KEY"], "it belongs to --endpoint"),
    ],
)
def test_wrong_usage_says_what_is_missing(ptrl, arguments, shown):
    result = ptrl("eval", *arguments)
    assert result.exit_code == 2
    assert shown in result.output


def test_a_model_that_cannot_be_loaded_is_an_error_without_a_traceback(config, ptrl, tmp_path):
    result = ptrl("eval", "--config", config, "--model", tmp_path / "nothing")
    assert result.exit_code == 1
    assert "error: no policy can be loaded from" in result.output
    missing = ptrl("eval", "--config", config)
    assert missing.exit_code == 2
    assert "model.path: missing" in missing.output


def test_an_api_key_that_is_not_set_is_an_error_that_names_the_variable(config, endpoint, ptrl, monkeypatch):
    monkeypatch.delenv("PTRL_TEST_KEY", raising=False)
    arguments = ["--endpoint", endpoint, "--model", "good", "--api-key-env", "PTRL_TEST_KEY"]
    result = ptrl("eval", "--config", config, *arguments)
    assert result.exit_code == 2
    assert "PTRL_TEST_KEY is not set" in result.output
