"""Serves the demo model and talks to it as users' programs do: through OpenAI's own library, its
agents, and LangChain. Arguments: the server's program, the model's file. Prints what went well, as
JSON; says what did not, and fails."""

import asyncio
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

# The server is this machine, whatever proxy leads to others; libraries read this as they are loaded.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"

import agents
import openai
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

MODEL = "demo"


@contextlib.contextmanager
def served(program, model):
    """Serves a model; gives the address, once it is loaded. Ends as a terminal's Ctrl-C ends it."""
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder, "log")
        command = [program, "--model", model, "--port", "0", "--drain-settle", "0"]
        with log.open("w") as said:
            server = subprocess.Popen(command, stderr=said, env=os.environ | {"NO_COLOR": "1"})
        try:
            yield address_of(server, log)
        finally:
            server.send_signal(signal.SIGINT)
            status = server.wait(60)
        if status != 0:
            raise SystemExit(f"{program} ended with status {status}: {log.read_text()}")


def address_of(server, log):
    """The server's address, once it is ready."""
    for _ in range(600):
        time.sleep(0.1)
        if server.poll() is not None:
            break
        if told := re.search(r"address=(\S+)", log.read_text()):
            address = f"http://{told[1]}"
            with contextlib.suppress(urllib.error.URLError):
                urllib.request.urlopen(f"{address}/health/ready").close()
                return f"{address}/v1"
    raise SystemExit(f"the server was not ready within a minute: {log.read_text()}")


servers = contextlib.ExitStack()
URL = servers.enter_context(served(*sys.argv[1:]))
client = openai.OpenAI(base_url=URL, api_key="none", max_retries=0)
STORY = [{"role": "user", "content": "Tell me a story about a cat."}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION = {"name": "get_weather", "description": "The weather of a city.", "strict": True}
CHAT_TOOLS = [{"type": "function", "function": FUNCTION | {"parameters": PARAMETERS}}]
RESPONSE_TOOLS = [{"type": "function", "parameters": PARAMETERS} | FUNCTION]


class Cat(BaseModel):
    """A cat."""

    name: str
    age: int


def models():
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def chat_whole_and_streamed():
    call = dict(model=MODEL, messages=STORY, max_completion_tokens=800, temperature=0)
    whole = client.chat.completions.create(**call)
    stream = client.chat.completions.create(
        **call, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(
        choice.delta.content or "" for chunk in chunks for choice in chunk.choices
    )
    assert text and text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens > 0
    with client.chat.completions.stream(**call) as helper:
        helper.until_done()
        assert helper.get_final_completion().choices[0].message.content == text


def chat_with_every_field():
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}]
        + STORY,
        max_completion_tokens=40,
        temperature=0.5,
        top_p=0.9,
        n=2,
        seed=3,
        stop=["\n\n\n"],
        presence_penalty=0.1,
        frequency_penalty=0.1,
        logit_bias={"5": -100},
        logprobs=True,
        top_logprobs=3,
        user="somebody",
        metadata={"a": "b"},
        store=False,
        reasoning_effort="low",
        parallel_tool_calls=True,
        service_tier="auto",
        prompt_cache_key="key",
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        reported = choice.logprobs.content
        assert "".join(token.token for token in reported) == choice.message.content
        assert all(len(token.top_logprobs) == 3 for token in reported)


def chat_tools():
    call = dict(model=MODEL, tools=CHAT_TOOLS, max_completion_tokens=300)
    asked = client.chat.completions.create(messages=WEATHER, tool_choice="required", **call)
    message = asked.choices[0].message
    assert asked.choices[0].finish_reason == "tool_calls"
    assert json.loads(message.tool_calls[0].function.arguments).keys() == {"city"}
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
    answer = client.chat.completions.create(messages=WEATHER + [message, result], **call)
    assert answer.choices[0].message.content or answer.choices[0].message.tool_calls
    with client.chat.completions.stream(
        messages=WEATHER, tool_choice="required", **call
    ) as stream:
        kinds = {event.type for event in stream}
        assert "tool_calls.function.arguments.done" in kinds, kinds


def chat_parsed():
    call = dict(model=MODEL, messages=STORY, max_completion_tokens=400, temperature=0)
    message = client.chat.completions.parse(response_format=Cat, **call).choices[0].message
    assert isinstance(message.parsed, Cat)


def completions():
    call = dict(model=MODEL, prompt="Once upon", max_tokens=12, seed=1)
    whole = client.completions.create(**call).choices[0].text
    pieces = client.completions.create(**call, stream=True)
    assert whole and whole == "".join(piece.choices[0].text for piece in pieces)
    echoed = client.completions.create(**call, echo=True, logprobs=2).choices[0]
    assert echoed.text == "Once upon" + whole
    assert len(echoed.logprobs.tokens) == len(echoed.logprobs.text_offset)
    many = client.completions.create(**(call | {"prompt": ["Once", "upon"], "n": 2}))
    assert len(many.choices) == 4


def responses_whole_and_streamed():
    call = dict(model=MODEL, input="Tell me a story.", max_output_tokens=200, temperature=0)
    whole = client.responses.create(**call)
    events = list(client.responses.create(**call, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1].response
    assert last.output_text and last.output_text == whole.output_text
    assert last.status == whole.status
    with client.responses.stream(**call) as stream:
        stream.until_done()
        assert stream.get_final_response().output_text == whole.output_text


def responses_counted():
    call = dict(model=MODEL, input="Tell me a story.", instructions="You help.")
    counted = client.responses.input_tokens.count(**call).input_tokens
    assert counted == client.responses.create(**call).usage.input_tokens > 0


def responses_tools():
    call = dict(model=MODEL, tools=RESPONSE_TOOLS, max_output_tokens=300)
    asked = client.responses.create(
        input=WEATHER, instructions="You help.", tool_choice="required", **call
    )
    calls = [item for item in asked.output if item.type == "function_call"]
    assert json.loads(calls[0].arguments).keys() == {"city"}
    said = [item.model_dump(exclude_none=True) for item in asked.output]
    result = {"type": "function_call_output", "call_id": calls[0].call_id, "output": "sunny"}
    answer = client.responses.create(input=WEATHER + said + [result], **call)
    assert answer.status in ("completed", "incomplete") and answer.output


def responses_parsed():
    call = dict(model=MODEL, input="A cat", max_output_tokens=400, temperature=0)
    assert isinstance(client.responses.parse(text_format=Cat, **call).output_parsed, Cat)


def errors():
    for error, call in [
        (openai.NotFoundError, dict(model="another", messages=STORY)),
        (openai.BadRequestError, dict(model=MODEL, messages=STORY, temperature=-1)),
        (openai.BadRequestError, dict(model=MODEL, messages=[])),
    ]:
        try:
            client.chat.completions.create(**call)
        except error as raised:
            assert raised.body["message"]
        else:
            raise AssertionError(f"{call}: expected {error.__name__}")


@agents.function_tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"It is sunny in {city}."


def agents_of_both_apis():
    agents.set_tracing_disabled(True)

    async def run(model):
        several = openai.AsyncOpenAI(base_url=URL, api_key="none", max_retries=0)
        agent = agents.Agent(
            name="weather",
            instructions="You help.",
            model=model(model=MODEL, openai_client=several),
            tools=[get_weather],
            model_settings=agents.ModelSettings(max_tokens=300, temperature=0),
        )
        whole = await agents.Runner.run(agent, WEATHER[0]["content"], max_turns=4)
        kinds = [type(item).__name__ for item in whole.new_items]
        assert "ToolCallOutputItem" in kinds and kinds[-1] == "MessageOutputItem", kinds
        streamed = agents.Runner.run_streamed(agent, WEATHER[0]["content"], max_turns=4)
        async for _ in streamed.stream_events():
            pass
        assert streamed.final_output == whole.final_output

    for model in [agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel]:
        asyncio.run(run(model))


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"It is sunny in {city}."


def langchain_over_both_apis():
    for responses in [False, True]:
        model = ChatOpenAI(
            model=MODEL,
            base_url=URL,
            api_key="none",
            max_tokens=300,
            temperature=0,
            max_retries=0,
            use_responses_api=responses,
        )
        whole = model.invoke(STORY)
        pieces = list(model.stream(STORY))
        assert whole.text and whole.text == "".join(piece.text for piece in pieces)
        called = model.bind_tools([weather], tool_choice="any").invoke(WEATHER)
        assert called.tool_calls[0]["args"].keys() == {"city"}
        assert isinstance(model.with_structured_output(Cat).invoke(STORY), Cat)
        assert len(model.batch([STORY, WEATHER, STORY])) == 3


CALLS = [
    models,
    chat_whole_and_streamed,
    chat_with_every_field,
    chat_tools,
    chat_parsed,
    completions,
    responses_whole_and_streamed,
    responses_counted,
    responses_tools,
    responses_parsed,
    errors,
    agents_of_both_apis,
    langchain_over_both_apis,
]
with servers:
    for call in CALLS:
        try:
            call()
        except Exception as error:
            raise SystemExit(f"{call.__name__}: {type(error).__name__}: {error}") from error
print(json.dumps({"passed": [call.__name__ for call in CALLS]}))
