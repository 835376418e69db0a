"""Tokens: the file, who is let in, what belongs to whom, what is logged."""

import fcntl
import json
import logging
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from embstore import commands as c
from embstore.commands import Right
from embstore.errors import (
    CheckpointNotFoundError,
    DeadlineError,
    InvalidArgumentError,
    OutcomeUnknownError,
    PermissionDeniedError,
    SessionExpiredError,
    TableHeldError,
    UnauthenticatedError,
)
from embstore.results import Digest
from embstore_client import connect
from embstore_proto.envelope import Origin
from embstore_proto.verbs import VERBS
from embstore_server.access import tokens as tokens_file
from embstore_server.access.principals import ANYBODY, Principal
from embstore_server.access.tokens import Entry, change, read, split_token
from embstore_server.cli import exits
from embstore_server.path import replay
from embstore_server.setup.launch import ServerProcess
from tests.service.access.samples import KEYS, MEMBER, sample
from tests.service.access.tenants import Caller, secrets, serving, token_of, update_of, write_tokens
from tests.service.faults.served import on_loop_call
from tests.serving import Server

PATIENT = {"timeout_s": 300.0, "connect_timeout_s": 300.0}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as server:
        yield server


# The file


def test_commands_write_the_file_and_a_token_is_shown_once(shell, tmp_path):
    path = tmp_path / "tokens.json"
    where = ("--tokens", str(path))
    made = shell("token", "add", "ads", "--right", "write", "--tables", "ads/*", *where, "--json")
    token = json.loads(made.out)["token"]
    name, secret = split_token(token)
    assert name == "ads" and secret not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    assert read(path)["ads"].has(secret)
    assert not read(path)["ads"].has(secret[:-1])
    granting = ("token", "grant", "ads", "--right", "read", "--tables", "x", "--tables", "y/*")
    assert shell(*granting, *where).status == 0
    assert read(path)["ads"].rights == {"ads/*": Right.WRITE, "x": Right.READ, "y/*": Right.READ}
    assert secret not in (listed := shell("token", "list", *where).out) and "write ads/*" in listed
    rest = ("--right", "admin", "--tables", "*", *where)
    assert "there already" in shell("token", "add", "ads", *rest).err
    assert shell("token", "add", "ops", *rest, "--certificate").out == ""
    assert shell("token", "remove", "ads", "--yes", *where).status == 0
    assert list(read(path)) == ["ops"]
    assert shell("token", "remove", "ads", "--yes", *where).status == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("a b", "--right", "read", "--tables", "*"), "expected a token's name"),
        (("a", "--right", "all", "--tables", "*"), "read, write, admin"),
        (("a", "--right", "read", "--tables", "team *"), "a pattern as 'team/*'"),
    ],
)
def test_what_cannot_be_granted_is_refused(shell, tmp_path, words, said):
    done = shell("token", "add", *words, "--tokens", str(tmp_path / "t"))
    assert done.status == 2 and said in done.err
    assert not (tmp_path / "t").exists()


def test_a_folder_of_tokens_that_is_not_there_is_made_by_the_hint(shell, tmp_path):
    add = ("token", "add", "a", "--right", "read", "--tables", "*")
    add += ("--tokens", str(tmp_path / "new folder" / "t"))
    refused = shell(*add)
    assert refused.status == 2
    subprocess.run(refused.err.partition("make it: ")[2], shell=True, check=True)
    assert shell(*add).status == 0


SECRET = f"sha256:{'00' * 32}"


@pytest.mark.parametrize(
    "tokens",
    [
        {"a": {"rights": {}}},
        {"a": {"secret": "x", "rights": {}}},
        {"a": {"secret": "sha256:00", "rights": {}}},
        {"a": {"certificate": False, "rights": {}}},
        {"a": {"secret": SECRET, "rights": {"*": "all"}}},
        {"a": {"secret": SECRET, "right": {}}},
    ],
)
def test_entries_that_are_not_understood_are_refused(tmp_path, tokens):
    path = tmp_path / "tokens.json"
    document = {"version": 2, "checksum": tokens_file._checksum(tokens), "tokens": tokens}
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidArgumentError, match=r"tokens .*tokens\.json: (?!the checksum)"):
        read(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 3}', '{"version": 2, "more": 1}'])
def test_a_file_that_is_not_understood_is_refused(tmp_path, text):
    path = tmp_path / "tokens.json"
    path.write_text(text)
    with pytest.raises(InvalidArgumentError, match=r"tokens .*tokens\.json"):
        read(path)


def test_a_pattern_has_what_it_says():
    principal = Principal("p", {"a/*": Right.WRITE, "a/x": Right.ADMIN, "b": Right.READ})
    rights = {name: principal.right_on(name) for name in ("a/x", "a/y/z", "a", "b", "b/c", "*")}
    known, read_, write, admin = Right.KNOWN, Right.READ, Right.WRITE, Right.ADMIN
    assert list(rights.values()) == [admin, write, known, read_, known, known]
    assert ANYBODY.right_on("*") is admin


# Who is let in


def test_a_token_is_read_from_the_environment(server, monkeypatch):
    with pytest.raises(UnauthenticatedError, match="EMBSTORE_TOKEN"):
        connect(server.address, **PATIENT)
    monkeypatch.setenv("EMBSTORE_TOKEN", token_of("writer"))
    with connect(server.address, **PATIENT) as store:
        assert store.tables() == ["a/t", "a/u"]
    with pytest.raises(InvalidArgumentError, match="printable"):
        connect(server.address, token="a\nb")


@pytest.mark.parametrize(
    "token", ["writer.", "writer", ".", "x.y", "operator.{}", "{}", "WRITER.{}"]
)
def test_a_wrong_token_is_refused(server, token):
    shown = token.format(secrets()["writer"][0])
    with Caller(server.address, shown) as caller, pytest.raises(UnauthenticatedError) as caught:
        caller.execute(c.GetServerInfo())
    assert shown not in str(caught.value)


def test_a_token_in_clear_text_is_only_sent_where_that_was_said():
    for address in ("a.example:1", "10.0.0.1:1", "[::2]:1"):
        with pytest.raises(InvalidArgumentError, match="clear text"):
            connect(address, token="a.b")
    with pytest.raises(DeadlineError):
        connect("192.0.2.1:1", token="a.b", insecure=True, connect_timeout_s=1e-3)


def test_guesses_keep_nobody_out(server):
    """Whoever guesses is refused at once, whatever becomes of the calls; who is right, is served,
    also when the server does not know the token yet."""
    on_loop_call(server.service.reload)
    guess = Caller(server.address, "writer.guess")
    for _ in range(200):
        with pytest.raises(UnauthenticatedError):
            guess.execute(c.GetServerInfo())
    guess.close()
    with Caller(server.address, token_of("writer")) as caller:
        caller.execute(c.GetTable("a/t"))


def test_names_that_nothing_can_have_leave_no_trace(server, caplog):
    caplog.set_level(logging.INFO)
    with Caller(server.address, token_of("nothing")) as caller:
        for n in range(3):
            with pytest.raises(InvalidArgumentError, match="255"):
                caller.execute(c.DropTable(f"{n}" * 1_000_000))
    (principal,) = (one for one in server.service.callers.known if one.name == "nothing")
    assert max(map(len, principal._found), default=0) <= 255
    assert all(len(record.getMessage()) < 2000 for record in caplog.records)


def test_changes_of_the_file_wait_for_one_another(shell, tmp_path):
    path = tmp_path / "tokens.json"
    shell("token", "add", "first", "--right", "read", "--tables", "*", "--tokens", str(path))

    def add(n: int) -> None:
        change(path, lambda entries: entries.update({f"n{n}": Entry(f"n{n}", None)}))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, range(24)))
    assert len(read(path)) == 25


ADDED = ("token", "add", "one", "--right", "read", "--tables", "*", "--tokens")


def test_a_lock_that_is_held_is_not_waited_for_without_end(shell, tmp_path, monkeypatch):
    monkeypatch.setattr(tokens_file, "LOCK_WAIT_S", 0.0)
    path, lock = tmp_path / "tokens.json", tmp_path / "tokens.json.lock"
    with lock.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        refused = shell(*ADDED, path)
        assert refused.status == exits.CONFLICT
        assert f"another process has held {lock} for 0 seconds" in refused.err
    assert shell(*ADDED, path).status == 0


def test_a_lock_that_is_no_regular_file_is_refused(shell, tmp_path):
    """A pipe whose other end somebody has open, and holds, takes a lock as a file does."""
    path, lock = tmp_path / "tokens.json", tmp_path / "tokens.json.lock"
    os.mkfifo(lock)
    refused = shell(*ADDED, path)
    assert refused.status == exits.FAILED and str(lock) in refused.err
    reader = os.open(lock, os.O_RDONLY | os.O_NONBLOCK)
    try:
        fcntl.flock(reader, fcntl.LOCK_EX)
        refused = shell(*ADDED, path)
    finally:
        os.close(reader)
    assert refused.status == exits.FAILED
    assert f"expected none, or a regular file: {lock}" in refused.err
    assert not path.exists()


def test_a_link_to_the_file_is_followed(shell, tmp_path):
    (tmp_path / "there").mkdir()
    given = "--right", "read", "--tables", "*", "--tokens"
    assert shell("token", "add", "one", *given, str(tmp_path / "there" / "tokens.json")).status == 0
    link = tmp_path / "tokens.json"
    link.symlink_to(tmp_path / "there" / "tokens.json")
    assert shell("token", "add", "two", *given, str(link)).status == 0
    assert link.is_symlink()
    assert sorted(read(tmp_path / "there" / "tokens.json")) == ["one", "two"]


def test_a_pipe_is_no_file_of_tokens(tmp_path):
    os.mkfifo(tmp_path / "tokens.json")
    for path in (tmp_path / "tokens.json", Path("/dev/zero")):
        with pytest.raises(InvalidArgumentError, match="expected a regular file"):
            read(path)


def test_a_removed_token_is_refused_with_its_next_call(server, tmp_path):
    with Caller(server.address, token_of("writer")) as caller:
        caller.execute(c.GetTable("a/t"))
        write_tokens(tmp_path / "tokens.json", "operator")
        on_loop_call(server.service.reload)
        with pytest.raises(UnauthenticatedError):
            caller.execute(c.GetTable("a/t"))
        (tmp_path / "tokens.json").write_text("garbage")
        on_loop_call(server.service.reload)
    with Caller(server.address, token_of("operator")) as caller:
        caller.execute(c.GetTable("a/t"))


def test_a_process_reads_its_tokens_again_at_sighup(tmp_path):
    tokens = write_tokens(tmp_path / "tokens.json", "operator")
    flags = ("--tokens", str(tokens), "--device", "cpu", "--cache-bytes", "1MiB")
    with ServerProcess(tmp_path / "store", *flags) as server:
        with pytest.raises(UnauthenticatedError):
            connect(server.address, token=token_of("trainer"))
        write_tokens(tokens, "operator", "trainer")
        server.reload("tokens read")
        connect(server.address, token=token_of("trainer")).close()
        assert not any(secrets()[name][0] in line for name in secrets() for line in server.log)


# What belongs to whom


def test_a_session_is_its_openers(server):
    with (
        Caller(server.address, token_of("writer")) as writer,
        Caller(server.address, token_of("owner")) as owner,
        Caller(server.address, token_of("operator")) as operator,
    ):
        writer.open_session("a")
        member = MEMBER.format("a")
        for command in (c.RenewLease(member), c.ReleaseStep(member, 1), c.CloseSession(member)):
            with pytest.raises(PermissionDeniedError, match="of another caller"):
                owner.execute(command)
        for named in (c.JoinSession("a-session", 0, member), c.EndSession("a-session")):
            with pytest.raises(SessionExpiredError, match="owner:a-session"):
                owner.execute(named)
        with pytest.raises(TableHeldError, match="writer:a-session"):
            owner.execute(c.OpenSession("a-session", ("a/t",)))
        writer.execute(c.ReleaseStep(member, 1))
        operator.execute(c.EndSession("writer:a-session"))
        owner.open_session("a")  # from the first step on: the place of the name is the writer's
        owner.execute(c.CloseSession(member, forget=True))
        writer.execute(c.OpenSession("a-session", ("a/t",)))
        places = server.store.executor.sessions.facts(member=None, name="writer:a-session")
        assert places is not None and places.last_step == 1


def test_a_remembered_answer_is_its_callers(server):
    """The same client and sequence, of another token, is another call."""

    def sent(caller: Caller, attempt: int) -> Any:
        verb = VERBS["Update"]
        outgoing = verb.outgoing(update_of("a/t"))
        origin = Origin("client", 1, attempt=attempt)
        return caller.raw(verb, outgoing, origin)

    with (
        Caller(server.address, token_of("writer")) as writer,
        Caller(server.address, token_of("owner")) as owner,
    ):
        first = sent(writer, 0)
        assert sent(writer, 0) == first
        assert sent(owner, 0) != first
        assert server.store.table("a/t").t == 2
        with pytest.raises(OutcomeUnknownError):  # not told as the writer's
            sent_later = replace(Origin("client", 1), attempt=1, instance="gone")
            with Caller(server.address, token_of("trainer")) as trainer:
                trainer.raw(VERBS["Update"], VERBS["Update"].outgoing(update_of("a/t")), sent_later)


def test_one_tokens_clients_push_out_no_others(server, monkeypatch):
    """Neither what is remembered of them, nor that a new one's call was never received."""
    monkeypatch.setattr(replay, "CLIENTS_MAX", 4)
    verb = VERBS["Update"]

    def sent(caller: Caller, client: str, attempt: int) -> Any:
        origin = Origin(client, 1, attempt=attempt, instance=instance, epoch=1)
        return caller.raw(verb, verb.outgoing(update_of("a/t")), origin)

    instance = server.service.instance
    with (
        Caller(server.address, token_of("writer")) as greedy,
        Caller(server.address, token_of("owner")) as quiet,
    ):
        first = [sent(quiet, client, 0) for client in ("1", "2")]
        for n in range(9):
            sent(greedy, str(n), 0)
        assert server.service.replay.remembered_calls == 4
        assert [sent(quiet, client, 1) for client in ("1", "2")] == first
        sent(quiet, "3", 1)  # its first attempt was lost on the way
        assert server.store.table("a/t").t == 2 + 9 + 1
        for client in ("0", "new"):
            with pytest.raises(OutcomeUnknownError, match="may have been forgotten"):
                sent(greedy, client, 1)


def test_lists_have_what_may_be_read(server):
    def connected(name: str) -> Any:
        return connect(server.address, token=token_of(name), **PATIENT)

    with connected("operator") as operator:
        assert operator.checkpoint("b/secret", {"of": "b"}).tables == 4
        assert operator.tables() == ["a/t", "a/u", "b/t", "b/u"]
    with connected("writer") as writer:
        assert writer.tables() == ["a/t", "a/u"]
        assert writer.checkpoints() == []
        made = writer.checkpoint("a/mine")
        assert made.tables is None  # others' count, too
        assert [kept.label for kept in writer.checkpoints()] == ["a/mine"]
        with pytest.raises(PermissionDeniedError, match="write on 'mine'"):
            writer.checkpoint("mine")
    with connected("nothing") as nothing:
        assert nothing.tables() == []


def test_what_others_change_does_not_show(server):
    """A hash that had the t of all tables would say it, too: small numbers are guessed. All answers
    have the number of the store's last command, which says that others call, and not where."""
    verbs = ["ListTables", "GetTable", "GetDigest", "GetLeaves", "GetStats", "ListCheckpoints"]
    with (
        Caller(server.address, token_of("owner")) as owner,
        Caller(server.address, token_of("trainer")) as trainer,
    ):

        def answer(verb: str) -> Any:
            value = VERBS[verb].answer(owner.execute(sample(verb, "a"))).value
            value = getattr(value, "digest", value)  # of leaves
            return replace(value, command=0) if isinstance(value, Digest) else value

        def kept(label: str) -> Any:
            return next(one for one in answer("ListCheckpoints") if one.label == label)

        owner.execute(c.Checkpoint("a/one", {}))
        before = {verb: answer(verb) for verb in verbs}
        trainer.execute(update_of("b/t"))
        trainer.execute(c.SetLearningRate("b/u", None, 0.5))
        assert {verb: answer(verb) for verb in verbs} == before
        owner.execute(c.Checkpoint("a/two", {}))
        one, two = kept("a/one"), kept("a/two")
        assert two.content and two == replace(one, label="a/two", command=two.command)
        trainer.execute(update_of("a/t"))
        owner.execute(c.Checkpoint("a/three", {}))
        assert kept("a/three").content != one.content


def test_a_denial_is_the_same_whether_the_table_is_there_or_not(server):
    with Caller(server.address, token_of("writer")) as writer:

        def denial(name: str) -> str:
            with pytest.raises(PermissionDeniedError) as caught:
                writer.execute(c.Lookup((c.TableKeys(name, None, KEYS),)))
            return str(caught.value).replace(name, "NAME")

        assert denial("b/t") == denial("b/none")
        for name in ("b/t", "b/none"):
            rates = c.UpdateOptions(learning_rates={name: 0.5})
            for command in (
                c.ClearTable(name, member=MEMBER),
                c.DeleteRows(c.TableKeys(name, None, KEYS), member=MEMBER),
                replace(update_of("a/t"), options=rates),
            ):
                with pytest.raises(PermissionDeniedError, match="on 'b/"):
                    writer.execute(command)
        with pytest.raises(PermissionDeniedError) as caught:
            writer.execute(c.Lookup((c.TableKeys("a/t", None, KEYS), c.TableKeys("b/t", 3, KEYS))))
    told = str(caught.value)
    assert "read on 'b/t'" in told and "'writer'" in told and "write on 'a/*'" in told


def test_a_scan_tells_nothing_of_labels_that_may_not_be_read(server):
    """Whether there is such a label or not, the refusal is the same."""
    with (
        Caller(server.address, token_of("operator")) as operator,
        Caller(server.address, token_of("reader")) as reader,
    ):
        for label in ("b/made", "a/made"):
            operator.execute(c.Checkpoint(label, {}))

        def denial(**labels: str) -> str:
            command = c.OpenScan("of a reader of its own", "a/t", **labels)
            with pytest.raises(PermissionDeniedError) as caught:
                reader.execute(command)
            return str(caught.value).replace(*labels.values(), "LABEL")

        for at in ("label", "since"):
            assert denial(**{at: "b/made"}) == denial(**{at: "b/none"})
            assert denial(**{at: "first"}) == denial(**{at: "none"})
        reader.execute(c.OpenScan("of a reader of its own", "a/t", label="a/made"))
        with pytest.raises(CheckpointNotFoundError):
            reader.execute(c.OpenScan("of a reader of its own", "a/t", since="a/none"))


# What is logged


def test_administration_is_audited_and_no_secret_is_logged(server, caplog):
    with (
        caplog.at_level(logging.DEBUG),
        Caller(server.address, token_of("writer")) as writer,
        Caller(server.address, token_of("owner")) as owner,
    ):
        with pytest.raises(PermissionDeniedError):
            writer.execute(c.DropTable("a/t"))
        writer.execute(update_of("a/t"))
        owner.execute(c.DropTable("a/t"))
        writer.execute(c.Checkpoint("a/label", {}))
    audited = [
        vars(one)["embstore_fields"] for one in caplog.records if one.getMessage() == "audit"
    ]
    kept = [(one["token"], one["verb"], one["on"], one["code"]) for one in audited]
    assert kept == [
        ("writer", "DropTable", "a/t", "PERMISSION_DENIED"),
        ("owner", "DropTable", "a/t", "OK"),
        ("writer", "Checkpoint", "a/label", "OK"),
    ]
    assert not any(secret in caplog.text for secret, _ in secrets().values())


def test_sighup_is_ours(tmp_path):
    """Without tokens it ends no server."""
    with ServerProcess(tmp_path / "store", "--device", "cpu", "--cache-bytes", "1MiB") as server:
        os.kill(server.pid, signal.SIGHUP)
        connect(server.address).close()
