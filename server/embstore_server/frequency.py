"""The verbs of frequencies: profiles, hot sets, counts, and the warm-up of the cache.

**Documents.** A profile and a hot set travel as the bytes of their files, in bulk messages whose
one array is of uint8: framed, streamed and bounded as rows are. What comes is parsed whole, and
checked, before anything changes. What goes is of any size, so it is always streamed.

**Where the work is done.** To read a document of a GiB takes seconds, to pin a hot set as long as
the disk needs for its rows, and to unpin one of millions of rows seconds again. The engine thread
has other things to do, so all of this runs beside it; the store takes its own lock, in pieces where
that is long. ClearCounts is short, and is the engine thread's as any call.

**Again.** None of these calls changes a row, and each may be sent again: a profile takes the place
of itself, and the hot set that is pinned is answered as it was when it came. So none has an Origin.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidArgumentError
from embstore.frequency.hotset import HotSet
from embstore.frequency.profile import Profile
from embstore.results import HotSetFacts
from embstore.store import Store
from embstore_proto.codec import Framed, Message, Received, array_of, parse
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_server.answers import Answered
from embstore_server.bulk import Call
from embstore_server.control import Verb
from embstore_server.service import Service
from embstore_server.warming import SHARE, Warmed

_SOURCES = {pb.PROFILE_SOURCE_COUNTED: "counted", pb.PROFILE_SOURCE_IMPORTED: "imported"}


# Documents

_PARSED_TIMES = 30
"""A document takes so many times its size, at most, until the store has it: the two bytes of a row
of a profile become two int64, and checks, ranks and what is kept take more. Measured: 29."""
_PARSING_SHARE = 2
"""Of what may be in flight, a document's parsing takes one part in so many: others go on."""


def check_size(store: Store, size: int, what: str) -> None:
    """Refuse a document that is too large.

    Raises
    ------
    InvalidArgumentError
    """
    if size > store.limits.call_bytes_max:
        raise InvalidArgumentError(
            f"expected {what} of at most {store.limits.call_bytes_max} bytes "
            f"(limits.call_bytes_max), found {size}"
        )


def parsing_bytes(service: Service, size: int) -> int:
    """Return how many bytes count as in flight, beside its own, while a document is parsed."""
    share = service.settings.inflight_bytes_max // _PARSING_SHARE
    return min((_PARSED_TIMES - 1) * size, share)


def _document(received: Received, place: pb.Array, what: str) -> NDArray[np.uint8]:
    return array_of(received, place, np.uint8, 1, what)


def _framed_document(reply: Any, name: str, content: bytes | None) -> Framed:
    """Frame a reply's header, with a document as its array of that name."""
    message = Message()
    if content is not None:
        getattr(reply, name).CopyFrom(message.add(np.frombuffer(content, np.uint8)))
    return message.framed(reply.SerializeToString())


# Profiles


def _export_profile(request: pb.ExportProfileRequest) -> Call:
    if request.source not in _SOURCES:
        raise InvalidArgumentError(f"expected source COUNTED or IMPORTED, found {request.source}")
    source = _SOURCES[request.source]

    def work(store: Store) -> bytes:
        return store.export_profile(source=source).to_bytes()

    return Call(work, _profile_reply, stages=False, beside=True)


def _profile_reply(answered: Answered) -> Framed:
    header = pb.ProfileReply.Header(context=answered.context)
    return _framed_document(header, "profile", answered.value)


def import_profile(received: Received) -> Call:
    """A profile for the tables that it names."""
    header = parse(pb.ImportProfileRequest.Header, received.header)
    content = _document(received, header.profile, "profile")
    rename = dict(header.rename)

    def work(store: Store) -> None:
        check_size(store, content.nbytes, "a profile")
        profile = Profile.from_bytes(content.tobytes(), "the profile")
        store.import_profile(profile, rename=rename)

    return Call(work, _profile_imported_reply, stages=False, beside=True)


def _profile_imported_reply(answered: Answered) -> Framed:
    header = pb.ProfileImportedReply.Header(context=answered.context)
    return Message().framed(header.SerializeToString())


# Hot sets


def pin_hot_set(received: Received) -> Call:
    """A hot set, to stay in the cache."""
    header = parse(pb.PinHotSetRequest.Header, received.header)
    content = _document(received, header.hot_set, "hot_set")

    def work(store: Store) -> HotSetFacts:
        check_size(store, content.nbytes, "a hot set")
        return store.pin_hot_set(HotSet.from_bytes(content.tobytes(), "the hot set"))

    return Call(work, _hot_set_pinned_reply, stages=False, beside=True)


def _description(facts: HotSetFacts) -> pb.HotSetDescription:
    return pb.HotSetDescription(
        version=facts.version, rows=facts.rows, bytes=facts.bytes, pinned_rows=facts.pinned_rows
    )


def _hot_set_pinned_reply(answered: Answered) -> Framed:
    described = _description(answered.value)
    header = pb.HotSetPinnedReply.Header(context=answered.context, hot_set=described)
    return Message().framed(header.SerializeToString())


def _get_hot_set(request: pb.GetHotSetRequest) -> Call:
    return Call(hot_set_bytes, _hot_set_reply, stages=False, beside=True)


def hot_set_bytes(store: Store) -> bytes | None:
    """Return the pinned hot set as a document; None: none is."""
    hot_set = store.hot_set()
    return None if hot_set is None else hot_set.to_bytes()


def _hot_set_reply(answered: Answered) -> Framed:
    header = pb.HotSetReply.Header(context=answered.context)
    return _framed_document(header, "hot_set", answered.value)


BULK: dict[str, Callable[[Received], Call]] = {
    "ImportProfile": import_profile,
    "PinHotSet": pin_hot_set,
}
"""By the name in the .proto file; each has a stream twin."""


class Document(NamedTuple):
    """A verb whose answer is a document: its request, and how that becomes a call."""

    request: type[Any]
    prepare: Callable[[Any], Call]


DOCUMENTS: dict[str, Document] = {
    "ExportProfile": Document(pb.ExportProfileRequest, _export_profile),
    "GetHotSet": Document(pb.GetHotSetRequest, _get_hot_set),
}
"""By the name in the .proto file: a request, and a stream of one bulk message."""


# Control


def _unpin_hot_set(request: pb.UnpinHotSetRequest) -> Callable[[Store], Any]:
    def work(store: Store) -> pb.UnpinHotSetReply:
        return pb.UnpinHotSetReply(hot_set=_description(store.pin_hot_set(None)))

    return work


def _clear_counts(request: pb.ClearCountsRequest) -> Callable[[Store], Any]:
    def work(store: Store) -> pb.ClearCountsReply:
        store.clear_counts()
        return pb.ClearCountsReply()

    return work


CONTROL: dict[str, Verb] = {
    "UnpinHotSet": Verb(pb.UnpinHotSetRequest, pb.UnpinHotSetReply, _unpin_hot_set, beside=True),
    "ClearCounts": Verb(pb.ClearCountsRequest, pb.ClearCountsReply, _clear_counts),
}
"""By the name in the .proto file."""


# Warming

FOLLOWED = ("WarmCache",)
"""A request, and a stream of how far it is."""


async def warmed(
    service: Service, request: pb.WarmCacheRequest
) -> AsyncIterator[pb.WarmCacheReply]:
    """Begin or join a warm-up; yield how far it is, whenever that has changed.

    Raises
    ------
    StoreClosedError : the server starts, stops or has failed.
    Exception : what ended the warm-up.
    """
    share = request.share if request.HasField("share") else SHARE
    warm_up = await service.warming.joined(share)
    told: Warmed | None = None

    def news() -> Warmed | None:
        now = warm_up.now()
        return now if now != told else None

    while told is None or not told.finished:
        told = await service.until(warm_up, news)
        yield pb.WarmCacheReply(
            context=service.context(), rows=told.rows, of=told.of, finished=told.finished
        )
