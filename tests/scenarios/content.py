"""Images and files, given by users and by tools: stored once, and seen by the model whoever dies on the way."""

from collections.abc import Sequence
from hashlib import sha256

from agentq import Agent, File, Image, RunContext, Thread, ToolMessage, UserMessage, tool
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Answer, Call
from tests.images import PDF, png
from tests.scenarios.scenario import scenario
from tests.scenarios.scene import Scene
from tests.scenarios.stage import Whole, act, pay

PHOTO, DRAWN = png(1, filled_to=30_001), png(2, filled_to=30_002)


def seen(messages: Sequence[object]) -> str:
    """What a model is given: the first digits of the hash of each image and file, in order."""
    parts = [
        part
        for message in messages
        for part in (message.parts if isinstance(message, UserMessage) else [])
        + (message.result.parts if isinstance(message, ToolMessage) else [])
        if isinstance(part, Image | File)
    ]
    return " ".join(sha256(part.data or b"").hexdigest()[:8] for part in parts)


def shown(*data: bytes) -> str:
    return " ".join(sha256(each).hexdigest()[:8] for each in data)


def says(request: ModelRequest) -> Answer:
    return seen(request.messages) or "nothing"


@tool(timeout=30, idempotent=True)
def draw(n: int, ctx: RunContext) -> list[object]:
    """Draw something."""
    act(ctx, "look")
    return ["drawn:", Image.from_bytes(DRAWN, name="drawn.png"), {"n": n}]


viewer = Agent("viewer", model=Whole([Call("pay", {"n": 1}), *[says] * 9], "viewer"), tools=[pay])
painter = Agent("painter", model=Whole([[Call("draw", {"n": n}) for n in range(2)], says], "painter"), tools=[draw])


def _stored(scene: Scene, *data: bytes) -> int:
    with scene.crew.connect() as connection:
        row = connection.execute("SELECT count(*) FROM agentq.blobs WHERE data = ANY(%s)", [list(data)]).fetchone()
    assert row is not None
    return int(str(row[0]))


@scenario(model=2, tool=1)
def images_of_a_user_are_seen(scene: Scene) -> None:
    given = ["What is broken?", Image.from_bytes(PHOTO, name="photo.png"), File.from_bytes(PDF, name="r.pdf")]
    handle = scene.enqueue(viewer, given)
    scene.done(handle, shown(PHOTO, PDF))
    scene.came_back(handle, ("pay", None, "pay 1"))
    first = handle.messages()[0]
    assert isinstance(first, UserMessage)
    photo, report = first.media
    assert (scene.client.read(photo), scene.client.read(report)) == (PHOTO, PDF)


@scenario(model=2, tool=2)
def images_of_tools_are_seen(scene: Scene) -> None:
    handle = scene.enqueue(painter)
    scene.done(handle, shown(DRAWN, DRAWN))
    assert _stored(scene, DRAWN) == 1


@scenario(model=3, tool=1, enqueued=2)
def image_of_a_thread_is_kept_while_somebody_has_it(scene: Scene) -> None:
    """Seen by the next message and by a copy of the thread; gone with the last of them."""
    own = png(scene.chance.randrange(1_000_000), filled_to=40_000)
    thread = scene.thread(viewer)
    scene.done(scene.enqueue(thread, [Image.from_bytes(own)]), shown(own))
    scene.done(scene.enqueue(thread, "and now?"), shown(own))
    copy = thread.fork(scene.unique("copy"), client=scene.client)
    _delete(scene, thread)
    assert _stored(scene, own) == 1
    handle = scene.enqueue(copy, "still there?")
    scene.done(handle, shown(own))
    _delete(scene, copy)
    assert _stored(scene, own) == 0


def _delete(scene: Scene, thread: Thread) -> None:
    thread.delete(client=scene.client)
    scene.handles = []


@scenario(model=2, tool=1, enqueued=2)
def image_joins_a_run(scene: Scene) -> None:
    thread = scene.thread(viewer)
    first = scene.enqueue(thread, "first")
    scene.until(lambda: scene.marked("model"), "the run is under way")
    second = scene.enqueue(thread, ["and this?", Image.from_bytes(PHOTO)], on_busy="steer")
    assert second.id == first.id
    scene.done(first, shown(PHOTO))
