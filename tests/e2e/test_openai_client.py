"""The official client against the real server: every kind of generation."""

import concurrent.futures
import json

import openai
import pytest

from server import wait_until

GREEDY = {"temperature": 0, "extra_body": {"ignore_eos": True}}


def test_models(client, model):
    assert [entry.id for entry in client.models.list()] == [model]
    assert client.models.retrieve(model).id == model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


def test_chat(client, model):
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "system", "content": "Be brief."},
                               {"role": "user", "content": "What is a compiler?"}],
        max_tokens=12, temperature=0)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == model
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and isinstance(choice.message.content, str)
    assert choice.finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.prompt_tokens > 5 and 1 <= usage.completion_tokens <= 12
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens == 0


def test_chat_stream_has_the_agreed_order(client, model):
    arguments = dict(model=model, messages=[{"role": "user", "content": "Hello"}],
                     max_completion_tokens=10, **GREEDY)
    chunks = list(client.chat.completions.create(
        stream=True, stream_options={"include_usage": True}, **arguments))
    first, *middle, finish, usage = chunks
    assert first.choices[0].delta.role == "assistant" and first.choices[0].delta.content == ""
    for chunk in middle:
        assert chunk.choices[0].delta.role is None
        assert isinstance(chunk.choices[0].delta.content, str)
        assert chunk.choices[0].finish_reason is None and chunk.usage is None
    assert finish.choices[0].finish_reason == "length"
    assert usage.choices == [] and usage.usage.completion_tokens == 10
    assert len({chunk.id for chunk in chunks}) == 1
    whole = client.chat.completions.create(**arguments)
    text = "".join(chunk.choices[0].delta.content for chunk in middle)
    assert text == whole.choices[0].message.content


def test_completion_and_its_stream(client, model):
    arguments = dict(model=model, prompt="The history of", max_tokens=20, **GREEDY)
    whole = client.completions.create(**arguments)
    assert whole.object == "text_completion" and whole.id.startswith("cmpl-")
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 20
    chunks = list(client.completions.create(stream=True, **arguments))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == "length"


def test_default_length_is_openais(client, model):
    answer = client.completions.create(model=model, prompt="One", extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 16


def test_token_id_prompts_equal_text(server, client, model):
    text = "The kernel of an operating system"
    status, body = server.post("/tokenize", {"model": model, "prompt": text})
    assert status == 200
    tokens = json.loads(body)["tokens"]
    assert json.loads(server.post("/detokenize", {"tokens": tokens})[1])["prompt"] == text
    by_text = client.completions.create(model=model, prompt=text, max_tokens=8, **GREEDY)
    by_ids = client.completions.create(model=model, prompt=tokens, max_tokens=8, **GREEDY)
    assert by_ids.choices[0].text == by_text.choices[0].text
    assert by_ids.usage.prompt_tokens == by_text.usage.prompt_tokens == len(tokens)


def test_lists_of_prompts(client, model):
    prompts = ["The first", "A second", "Third"]
    together = client.completions.create(model=model, prompt=prompts, max_tokens=6, **GREEDY)
    assert [choice.index for choice in together.choices] == [0, 1, 2]
    for prompt, choice in zip(prompts, together.choices):
        alone = client.completions.create(model=model, prompt=prompt, max_tokens=6, **GREEDY)
        assert alone.choices[0].text == choice.text
    lists = client.completions.create(model=model, prompt=[[5, 6], [7]], max_tokens=2, **GREEDY)
    assert len(lists.choices) == 2 and lists.usage.prompt_tokens == 3


def test_n_choices_stream_side_by_side(client, model):
    finishes, texts = {}, {0: "", 1: "", 2: ""}
    arguments = dict(model=model, prompt="Once", max_tokens=8, n=3, seed=5, temperature=1.0,
                     extra_body={"ignore_eos": True})
    for chunk in client.completions.create(stream=True, **arguments):
        choice = chunk.choices[0]
        texts[choice.index] += choice.text
        if choice.finish_reason:
            assert choice.index not in finishes
            finishes[choice.index] = choice.finish_reason
    assert finishes == {0: "length", 1: "length", 2: "length"}
    whole = client.completions.create(**arguments)
    assert [choice.text for choice in whole.choices] == [texts[0], texts[1], texts[2]]
    assert len(set(texts.values())) > 1


def test_stop_strings_end_the_text(client, model):
    long = client.completions.create(
        model=model, prompt="The history of", max_tokens=30, **GREEDY).choices[0].text
    # A piece from the middle, which is all valid text.
    stop = next(long[i:i + 3] for i in range(len(long) // 3, len(long) - 3)
                if "\ufffd" not in long[i:i + 3])
    cut = client.completions.create(
        model=model, prompt="The history of", max_tokens=30, stop=[stop, "never there"], **GREEDY)
    assert cut.choices[0].text == long[:long.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    streamed = "".join(
        chunk.choices[0].text for chunk in client.completions.create(
            model=model, prompt="The history of", max_tokens=30, stop=stop, stream=True, **GREEDY))
    assert streamed == long[:long.index(stop)]


def test_stop_token_ids_and_min_tokens(server, client, model):
    long = client.completions.create(model=model, prompt="The", max_tokens=12, **GREEDY)
    tokens = json.loads(server.post("/tokenize", {"prompt": long.choices[0].text})[1])["tokens"]
    body = {"ignore_eos": True, "stop_token_ids": tokens, "min_tokens": 5}
    answer = client.completions.create(
        model=model, prompt="The", max_tokens=12, temperature=0, extra_body=body)
    assert 5 <= answer.usage.completion_tokens <= 12


def test_seeds(client, model):
    def sample(seed):
        return client.completions.create(
            model=model, prompt="Some", max_tokens=12, temperature=1.0, seed=seed,
            extra_body={"ignore_eos": True}).choices[0].text
    assert sample(1) == sample(1)
    assert len({sample(seed) for seed in range(5)}) > 1


def test_greedy_text_does_not_depend_on_what_runs_beside_it(client, model):
    def greedy(prompt):
        return client.completions.create(
            model=model, prompt=prompt, max_tokens=24, **GREEDY).choices[0].text
    prompts = [f"Sentence number {i} is about" for i in range(12)]
    alone = [greedy(prompt) for prompt in prompts[:4]]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        together = list(pool.map(greedy, prompts))
    assert together[:4] == alone


def test_echo(client, model):
    answer = client.completions.create(
        model=model, prompt="Say it: ", max_tokens=3, echo=True, **GREEDY)
    assert answer.choices[0].text.startswith("Say it: ")


def test_closing_a_stream_cancels_it(server, client, model):
    stream = client.completions.create(
        model=model, prompt="Never ending", max_tokens=2000, stream=True, **GREEDY)
    for _ in zip(range(3), stream):
        pass
    assert server.metrics()["num_requests_running"] == 1
    stream.close()
    wait_until(lambda: server.metrics()["num_requests_running"] == 0, 5, "running == 0")


def test_disconnect_cancels_an_answer_that_is_not_streamed(server, model):
    from server import RawConnection
    with RawConnection(server) as connection:
        connection.post("/v1/completions", {"model": model, "prompt": "x", "max_tokens": 2000,
                                            "ignore_eos": True})
        wait_until(lambda: server.metrics()["num_requests_running"] == 1, 10, "running == 1")
    wait_until(lambda: server.metrics()["num_requests_running"] == 0, 5, "running == 0")


@pytest.mark.parametrize("arguments, param", [
    (dict(temperature=3), "temperature"),
    (dict(top_p=0), "top_p"),
    (dict(n=100), "n"),
    (dict(max_tokens=0), "max_tokens"),
    (dict(logprobs=2), "logprobs"),
    (dict(presence_penalty=1.0), "presence_penalty"),
    (dict(logit_bias={"5": 1}), "logit_bias"),
    (dict(suffix="end"), "suffix"),
    (dict(best_of=3), "best_of"),
])
def test_refusals_name_the_field(client, model, arguments, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=model, prompt="x", **arguments)
    assert caught.value.param == param
    assert caught.value.body["message"].startswith(f"field '{param}'")


def test_tools_are_refused(client, model):
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "x"}], tools=[tool])
    assert caught.value.code == "unsupported_parameter"


def test_unknown_model(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="gpt-4", prompt="x")
    assert caught.value.code == "model_not_found"


def test_too_long_prompt_says_the_numbers(server, client, model):
    limit = json.loads(server.get("/server_info")[1])["max_model_len"]
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=model, prompt=[5] * (limit + 7), max_tokens=1)
    assert caught.value.code == "context_length_exceeded"
    assert str(limit) in caught.value.message and str(limit + 7) in caught.value.message
    # The longest that fits does.
    answer = client.completions.create(model=model, prompt=[5] * (limit - 1), max_tokens=1,
                                       extra_body={"ignore_eos": True})
    assert answer.usage.total_tokens == limit


def test_request_id_is_echoed(client, model):
    response = client.completions.with_raw_response.create(
        model=model, prompt="x", max_tokens=1, extra_headers={"X-Request-Id": "abc-123"})
    assert response.headers["x-request-id"] == "abc-123"
