#!/usr/bin/env python3
"""Drives `palimpsest serve` with the Python clients of the interfaces that it speaks.

    python3 -m venv VENV && VENV/bin/pip install -r tools/clients.txt
    VENV/bin/python tools/check_api_clients.py build/release/bin/palimpsest [models/demo]

Ends with code 77, and says so, where a client is not installed.
"""

import sys

from served import served

try:
    import anthropic
    import openai
except ImportError as error:
    print(f"skipped: {error.name} is not installed (see the head of {sys.argv[0]})")
    sys.exit(77)

KEY = "a key of this test"
QUESTION = [{"role": "user", "content": "The password of Alder House is 48213. What is the password of Alder House?"}]
TOOL = {"name": "look_up", "description": "Looks a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}}


def check(condition, *shown):
    if not condition:
        raise AssertionError(shown)


def chats(client):
    whole = client.chat.completions.create(model="demo", messages=QUESTION, temperature=0, max_tokens=40)
    text = whole.choices[0].message.content
    check("48213" in text, whole)
    stream = client.chat.completions.create(model="demo", messages=QUESTION, temperature=0, max_tokens=40, stream=True,
                                            stream_options={"include_usage": True})
    chunks = list(stream)
    check("".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text, text)
    check(chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens)
    history = QUESTION + [
        {"role": "assistant", "content": None,
         "tool_calls": [{"id": "1", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "x"}'}}]},
        {"role": "tool", "tool_call_id": "1", "content": "nothing"}]
    with_tools = client.chat.completions.create(model="demo", messages=history, max_tokens=4,
                                                tools=[{"type": "function", "function": TOOL}])
    check(with_tools.usage.completion_tokens >= 1, with_tools)


def completions(client):
    both = client.completions.create(model="demo", prompt=["The old man", "It was a dark"], temperature=0, max_tokens=8)
    one = client.completions.create(model="demo", prompt="It was a dark", temperature=0, max_tokens=8)
    check([c.index for c in both.choices] == [0, 1] and both.choices[1].text == one.choices[0].text, both, one)


def embeddings(client):
    # The client asks for base64 where no format is named, and reads it back.
    coded = client.embeddings.create(model="demo", input=["a", "the sea"]).data
    plain = client.embeddings.create(model="demo", input=["a", "the sea"], encoding_format="float").data
    check(len(coded) == 2)
    for a, b in zip(coded, plain):
        check(max(abs(x - y) for x, y in zip(a.embedding, b.embedding)) < 1e-6)
        check(abs(sum(x * x for x in a.embedding) - 1) < 1e-5)


def models(client):
    check([m.id for m in client.models.list()] == ["demo"])
    check(client.models.retrieve("demo").id == "demo")
    try:
        client.models.retrieve("other")
    except openai.NotFoundError:
        return
    raise AssertionError("there is no other model")


def responses(client):
    whole = client.responses.create(model="demo", input=QUESTION[0]["content"], temperature=0, max_output_tokens=80)
    check("48213" in whole.output_text, whole)
    pieces, last = [], None
    for event in client.responses.create(model="demo", input=QUESTION[0]["content"], temperature=0, max_output_tokens=80,
                                         stream=True):
        if event.type == "response.output_text.delta":
            pieces.append(event.delta)
        last = event
    check(last.type == "response.completed", last)
    check("".join(pieces) == whole.output_text == last.response.output_text, pieces)
    items = [{"role": "user", "content": "q"},
             {"type": "function_call", "call_id": "1", "name": "look_up", "arguments": '{"word": "x"}'},
             {"type": "function_call_output", "call_id": "1", "output": "nothing"}]
    after = client.responses.create(model="demo", input=items, tools=[{"type": "function", **TOOL}], max_output_tokens=4)
    check(after.status in ("completed", "incomplete"), after)
    with client.responses.stream(model="demo", input=QUESTION[0]["content"], temperature=0, max_output_tokens=80) as stream:
        for _ in stream:
            pass
        check(stream.get_final_response().usage.output_tokens > 0)


def refusals(client):
    try:
        client.chat.completions.create(model="demo", messages=QUESTION, temperature=9)
    except openai.BadRequestError as error:
        check(error.param == "temperature", error)
    else:
        raise AssertionError("temperature 9 was taken")
    try:
        openai.OpenAI(base_url=str(client.base_url), api_key="wrong").models.list()
    except openai.AuthenticationError:
        return
    raise AssertionError("a wrong key was taken")


def messages(client):
    asked = {"model": "demo", "max_tokens": 40, "messages": QUESTION, "extra_body": {"temperature": 0}}
    whole = client.messages.create(**asked)
    text = "".join(b.text for b in whole.content if b.type == "text")
    check("48213" in text and whole.stop_reason in ("end_turn", "max_tokens"), whole)
    with client.messages.stream(**asked) as stream:
        check("".join(stream.text_stream) == text)
        final = stream.get_final_message()
    check(final.stop_reason == whole.stop_reason and final.usage.output_tokens == whole.usage.output_tokens, final)
    check(final.usage.cache_read_input_tokens > 0, final)
    count = client.messages.count_tokens(model="demo", messages=QUESTION)
    check(count.input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens, count)
    tool = {"name": "look_up", "description": "Looks a word up.", "input_schema": TOOL["parameters"]}
    history = QUESTION + [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "look_up", "input": {"word": "x"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "nothing"}]}]
    check(client.messages.create(model="demo", max_tokens=4, messages=history, tools=[tool]).usage.output_tokens >= 1)
    try:
        client.messages.create(model="demo", max_tokens=4, messages=QUESTION, extra_body={"temperature": 9})
    except anthropic.BadRequestError as error:
        check(error.body["error"]["type"] == "invalid_request_error", error.body)
    else:
        raise AssertionError("temperature 9 was taken")


def main():
    program, model = sys.argv[1], (sys.argv[2:] or ["models/demo"])[0]
    with served(program, model, "-c", "1024", "-np", "2", "-t", "1", key=KEY) as address:
        client = openai.OpenAI(base_url=address + "/v1", api_key=KEY, max_retries=0)
        for one in (models, chats, completions, embeddings, responses, refusals):
            one(client)
            print(f"openai {openai.__version__}: {one.__name__}")
        messages(anthropic.Anthropic(base_url=address, api_key=KEY, max_retries=0))
        print(f"anthropic {anthropic.__version__}: messages")


main()
