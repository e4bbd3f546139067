"""Images and files from the producer to the model: stored once, never without what refers to them, and gone with it."""

import base64
from collections import Counter
from typing import Any

import pytest

from agentq import (
    Agent,
    ConfigError,
    ContentError,
    File,
    Happened,
    Image,
    RunContext,
    RunFailedError,
    ToolMessage,
    ToolResult,
    UserMessage,
    tool,
)
from agentq.blob_cache import BlobCache
from agentq.content import MAX_MESSAGE_BYTES
from agentq.errors import ProviderError
from agentq.hooks import Hooks, ModelView
from agentq.messages import media_of
from agentq.providers.base import ModelReply, ModelRequest
from agentq.providers.scripted import Call, Scripted
from agentq.storage.database import Database
from tests.engine.counting import counted
from tests.engine.drain import Died, Drain
from tests.engine.seeing import SEES, answer, count, draw, draws, results, saw, stored
from tests.images import PDF, png

# ---------------------------------------------------------------------------------------------- from the producer


def test_a_users_images_and_files_reach_the_model_in_their_order(database: Database) -> None:
    drain = Drain(database, SEES)
    image, pdf = Image.from_bytes(png(1)), File.from_bytes(PDF, name="r.pdf")
    handle = drain.enqueue(SEES, ["compare", image, "with", pdf, Image.from_url("https://x.invalid/a.png")])
    drain.work()
    assert handle.result().text == f"{saw(png(1), PDF)} https://x.invalid/a.png"
    said = handle.messages()[0]
    assert isinstance(said, UserMessage)
    assert [type(part).__name__ for part in said.parts] == ["str", "Image", "str", "File", "Image"]
    assert [one.data for one in said.media] == [None, None, None]
    assert drain.client.read(said.media[1]) == PDF
    with pytest.raises(ContentError, match="was given by its URL"):
        drain.client.read(said.media[2])


def test_the_same_image_in_a_thousand_messages_is_one_row(database: Database) -> None:
    drain = Drain(database, SEES)
    image = Image.from_bytes(png(1))
    handles = drain.client.enqueue_many("sees", [[f"{n}", image] for n in range(1_000)])
    drain.enqueue(SEES, image)
    assert (count(database, "blobs"), count(database, "blob_refs")) == (1, 1_001)
    drain.do(drain.wake_ups.pop(0))
    assert handles[0].result().text == saw(png(1))


def test_runs_enqueued_together_may_have_images_or_not(database: Database) -> None:
    drain = Drain(database, SEES)
    given = ["a", ["b", Image.from_bytes(png(1))], Image.from_bytes(png(2)), "c"]
    handles = drain.client.enqueue_many("sees", given, idempotency_keys=list("wxyz"))
    drain.work()
    assert [handle.result().text for handle in handles] == [saw(), saw(png(1)), saw(png(2)), saw()]
    again = drain.client.enqueue_many("sees", given, idempotency_keys=list("wxyz"))
    assert [handle.id for handle in again] == [handle.id for handle in handles]
    assert (count(database, "blobs"), count(database, "blob_refs")) == (2, 2)


def test_nothing_of_an_image_is_in_a_message_of_the_broker_or_a_row_of_the_run(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="agentq")
    secret = png(3, filled_to=2_000)
    drain = Drain(database, draws(3))
    drain.enqueue(drain.client.agents["draws"], ["look", Image.from_bytes(secret, name="private.png")])  # type: ignore[arg-type]
    drain.work()
    forms = [secret.hex()[40:80], base64.b64encode(secret).decode()[20:60], png(3).hex()[-40:-20]]
    with database.autocommit() as connection:
        rows = [
            str(row)
            for table in ("runs", "journal", "tool_calls")
            for row in connection.execute(f"select * from agentq.{table}")
        ]
    assert any("private.png" in row for row in rows)
    for text in [*rows, *map(str, drain.sent), caplog.text]:
        assert not any(form in text for form in forms)
    for text in [*map(str, drain.sent), caplog.text]:
        assert "private.png" not in text


def test_a_key_that_is_known_stores_nothing_new_that_somebody_refers_to(database: Database) -> None:
    drain = Drain(database, SEES)
    first = drain.enqueue(SEES, Image.from_bytes(png(1)), idempotency_key="k")
    second = drain.enqueue(SEES, Image.from_bytes(png(2)), idempotency_key="k")
    assert (first.id, second.is_new) == (second.id, False)
    assert drain.client.delete_unreferenced() == 1
    assert stored(database) == {png(1)}


def test_bad_input_is_refused_before_anything_is_stored(database: Database) -> None:
    drain = Drain(database, SEES)
    with pytest.raises(ContentError, match="part 2 of the message"):
        drain.enqueue(SEES, [Image.from_bytes(png(1)), 5])  # type: ignore[arg-type]
    with pytest.raises(ContentError, match="part 1 of the message"):
        drain.client.enqueue_many("sees", ["hi", [None]])
    with pytest.raises(ConfigError, match="takes a list of texts"):
        drain.client.enqueue_many("sees", Image.from_bytes(png(1)))  # type: ignore[arg-type]
    assert (count(database, "runs"), count(database, "blobs")) == (0, 0)


def test_an_image_of_a_transcript_may_be_sent_again_as_long_as_it_is_stored(database: Database) -> None:
    drain = Drain(database, SEES)
    thread = SEES.thread("t")
    thread.enqueue(["look", Image.from_bytes(png(1))], client=drain.client)
    drain.work()
    (image,) = media_of(thread.history(client=drain.client)[0])
    drain.enqueue(SEES, ["again", image])
    assert (count(database, "blobs"), count(database, "runs")) == (1, 2)
    gone = Image.from_bytes(png(2)).with_data(None)
    for options in ({}, {"thread": "u"}):
        with pytest.raises(ContentError, match="is not stored here any more; give its bytes"):
            drain.enqueue(SEES, ["again", gone], **options)
    assert (count(database, "runs"), count(database, "threads")) == (2, 1)


def test_the_largest_message_is_stored_and_read(database: Database) -> None:
    drain = Drain(database, SEES)
    files = [File.from_bytes(bytes([n]) * 16_000_000, media_type="a/b") for n in range(3)]
    handle = drain.enqueue(SEES, ["look", *files])
    drain.work()
    assert handle.result().text == saw(*[bytes(16_000_000)] * 3)


@pytest.mark.parametrize("differ", [True, False])
def test_a_conversation_with_more_than_a_request_may_hold_fails_with_what_to_do(
    database: Database, differ: bool
) -> None:
    drain = Drain(database, SEES)
    for n in range(4):
        data = bytes([n * differ]) * (MAX_MESSAGE_BYTES // 3)
        handle = drain.enqueue(SEES, File.from_bytes(data, media_type="a/b"), thread="t")
        drain.work()
    with pytest.raises(RunFailedError, match="leave some out with a before_model hook") as raised:
        handle.result()
    assert raised.value.code == "content_invalid"


# ---------------------------------------------------------------------------------------------- costs


def test_an_image_costs_its_own_statements_and_is_read_once_a_process(database: Database) -> None:
    drain = Drain(database, SEES)
    image = Image.from_bytes(png(1))
    with counted(database) as counts:
        drain.enqueue(SEES, ["look", image], thread="t")
    assert counts["commits"] == 1
    with counted(database) as again:
        drain.enqueue(SEES, ["look", image])
    # To hold the lock, to see what is there, and then only the run and its reference: the bytes are not sent again.
    assert again == Counter(reads=1, writes=3, commits=1)
    with counted(database) as counts:
        drain.do(drain.wake_ups.pop(0))
    assert counts == Counter(claims=1, reads=3, writes=1, commits=1)
    with counted(database) as counts:
        drain.do(drain.wake_ups.pop(0))
    assert counts == Counter(claims=1, reads=1, writes=1, commits=1)


def test_no_connection_is_held_while_a_model_looks_at_an_image(database: Database) -> None:
    only_one = Database(database.url, pool_size=1)

    def look(request: ModelRequest) -> str:
        with only_one.autocommit() as connection:
            connection.execute("select 1")
        return answer(request)

    drain = Drain(only_one, test := Agent("test", model=Scripted([look])))
    handle = drain.enqueue(test, Image.from_bytes(png(1)))
    drain.work()
    assert handle.result().text == saw(png(1))
    only_one.dispose()


def test_transcripts_are_remembered_without_bytes_and_bytes_up_to_a_bound(database: Database) -> None:
    kept: list[Any] = []

    def look(request: ModelRequest) -> str:
        known = drain.engine.services.transcripts._known.values()
        kept.extend(one.data for run in known for message in run.messages.values() for one in media_of(message))
        return answer(request)

    asked = [Call("draw", {"n": n}) for n in (1, 2)]
    quick = tool(inline=True)(draw.function)
    drain = Drain(database, test := Agent("t", model=Scripted([*asked, look]), tools=[quick]), local_steps=64)
    with counted(database) as counts:
        handle = drain.enqueue(test)
        drain.work()
    assert kept == [None, None]
    assert handle.result().text == saw(png(1), png(2))
    # The process that stored them has them: only the transcript is read, and what is there of them already.
    assert counts["reads"] == 1 + 2
    cache = BlobCache(database, max_bytes=len(png(1)))
    for message in handle.messages():
        cache.load([message])
    assert list(cache._known.values()) == [png(2)]


# ---------------------------------------------------------------------------------------------- from tools


@pytest.mark.parametrize("local_steps", [0, 64])
@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("numbers", [(1,), (3, 1, 2)])
def test_what_tools_return_is_stored_with_their_results_and_seen_by_the_model(
    database: Database, numbers: tuple[int, ...], inline: bool, local_steps: int
) -> None:
    drain = Drain(database, test := draws(*numbers, inline=inline), local_steps=local_steps)
    handle = drain.enqueue(test)
    drain.work()
    assert handle.result().text == saw(*map(png, numbers))
    assert [result.text for result in results(handle)] == [f'drawn {n}:\n{{"n": {n}}}' for n in numbers]
    assert [drain.client.read(result.media[0]) for result in results(handle)] == [png(n) for n in numbers]
    assert stored(database) == {png(n) for n in numbers}


def test_a_tool_that_returns_what_cannot_be_taken_has_failed(database: Database) -> None:
    @tool
    def bad() -> Any:
        """Fail."""
        return {"chart": Image.from_bytes(png(1))}

    @tool
    def missing() -> Any:
        """Fail."""
        return Image.from_path("/nowhere/a.png")

    drain = Drain(
        database, test := Agent("t", model=Scripted([[Call("bad"), Call("missing")], "x"]), tools=[bad, missing])
    )
    handle = drain.enqueue(test)
    drain.work()
    first, second = results(handle)
    assert (first.code, second.code) == ("tool_failed", "tool_failed")
    assert "return it by itself, or in a list" in first.text
    assert "there is no file '/nowhere/a.png'" in second.text
    assert count(database, "blobs") == 0


def test_hooks_see_what_a_tool_returned_and_may_replace_it(database: Database) -> None:
    seen: list[Any] = []

    class Blur(Hooks):
        def before_tool(self, ctx: RunContext, call: Any) -> ToolResult | None:
            if ctx.call_id != "call_2":
                return None
            own = Image.from_bytes(png(22))
            return ToolResult(call_id="", name="", text="not drawn", media=(own,))

        def after_tool(self, ctx: RunContext, result: ToolResult) -> ToolResult | None:
            seen.extend(one.data for one in result.media)
            if ctx.call_id == "call_1":
                return result.model_copy(update={"text": "x", "media": (Image.from_bytes(png(11)).placed(99),)})
            if ctx.call_id == "call_3":
                return result.model_copy(update={"media": ()})
            if ctx.call_id == "call_4":
                return result.model_copy(update={"media": ("no image",)})
            return None

    drain = Drain(database, test := draws(1, 2, 3, 4, hooks=[Blur()]))
    handle = drain.enqueue(test)
    drain.work()
    assert seen == [png(1), png(22), png(3), png(4)]
    assert handle.result().text == saw(png(11), png(22), png(4))
    assert stored(database) == {png(11), png(22), png(4)}
    faults = [event.data["faults"] for event in handle.events(follow=False) if "faults" in event.data]
    assert faults == [["Blur: it returned media that are no images and files with their bytes"]]


def test_a_hook_may_leave_images_out_of_a_call_or_put_others_in(database: Database) -> None:
    class Other(Hooks):
        def before_model(self, ctx: RunContext, view: ModelView) -> ModelView | None:
            own = UserMessage(text="look", media=(Image.from_bytes(png(5, filled_to=500)),))
            return ModelView(view.instructions, (own,), view.tools, view.model)

    drain = Drain(database, test := Agent("test", model=Scripted([answer]), hooks=[Other()]))
    handle = drain.enqueue(test, ["look", Image.from_bytes(png(1))])
    with counted(database) as counts:
        drain.work()
    assert handle.result().text == "saw 500"
    # What it left out is not read.
    assert counts["reads"] == 1
    assert stored(database) == {png(1)}


def test_what_was_found_at_the_destination_may_be_an_image(database: Database) -> None:
    lost: list[bool] = []

    def find(n: int) -> Any:
        return Happened([f"found {n}", Image.from_bytes(png(n))])

    @tool(on_unknown=find)
    def draw(n: int) -> Any:
        """Draw, and be killed."""
        lost.append(True)
        raise Died

    drain = Drain(database, test := Agent("t", model=Scripted([Call("draw", {"n": 4}), answer]), tools=[draw]))
    handle = drain.enqueue(test)
    with pytest.raises(Died):
        drain.work()
    drain.age(20)
    drain.sweep()
    drain.work()
    assert handle.result().text == saw(png(4))
    assert len(lost) == 1


def test_a_person_answers_in_texts_and_values_only(database: Database) -> None:
    drain = Drain(database, test := draws(1, approve=["draw"]))
    handle = drain.enqueue(test)
    drain.work()
    with pytest.raises(ConfigError, match="the result has no JSON form"):
        handle.respond("call_1", Image.from_bytes(png(1)))
    handle.approve("call_1", arguments={"n": 2})
    drain.work()
    (result,) = results(handle)
    assert result.text.startswith("A person changed the arguments to")
    # The place behind the text moves with it.
    assert [str(part)[:9] for part in result.parts] == ["A person ", "[image 2.", '{"n": 2}']


def test_a_sub_agent_is_asked_and_answers_in_text_and_its_images_stay_with_it(database: Database) -> None:
    helper = draws(1)
    boss = Agent("boss", model=Scripted([Call("draws", {"input": "draw one"}), answer]), tools=[helper.as_tool()])
    drain = Drain(database, boss, helper)
    handle = drain.enqueue(boss)
    drain.work()
    assert results(handle)[0] == ToolResult(call_id=results(handle)[0].call_id, name="draws", text=saw(png(1)))
    assert handle.result().text == saw()


class Blind:
    """A model that sees nothing, and refuses each request that has an image."""

    name = "blind"

    def __init__(self) -> None:
        self.requests: list[ModelRequest] = []
        self._script = Scripted([Call("draw", {"n": 1}), "done"])

    def complete(self, request: ModelRequest) -> ModelReply:
        self.requests.append(request)
        if any(media_of(message) for message in request.messages):
            raise ProviderError("content_unsupported", "blind cannot see")
        return self._script.complete(request)


def test_a_model_without_eyes_is_told_of_a_tools_image_in_words_and_a_user_is_told_of_the_model(
    database: Database,
) -> None:
    model = Blind()
    drain = Drain(database, test := Agent("test", model=model, tools=[draw]))
    handle = drain.enqueue(test)
    drain.work()
    assert handle.result().text == "done"
    told = model.requests[-1].messages[-1]
    assert isinstance(told, ToolMessage)
    assert f"[image 1.png, image/png, {len(png(1))} bytes: this model cannot take it]" in told.result.text
    # The transcript keeps it, for a model that can.
    assert results(handle)[0].media
    assert len(model.requests) == 3
    handle = drain.enqueue(test, ["look", Image.from_bytes(png(1))])
    drain.work()
    with pytest.raises(RunFailedError) as raised:
        handle.result()
    assert raised.value.code == "provider_content_unsupported"


def test_the_fallback_that_can_see_gets_what_the_first_model_cannot(database: Database) -> None:
    drain = Drain(database, test := Agent("test", model=Blind(), fallback=[Scripted([answer], "other")]))
    handle = drain.enqueue(test, Image.from_bytes(png(1)))
    drain.work()
    assert handle.result().text == saw(png(1))
