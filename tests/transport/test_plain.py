"""Questions as plain messages, between real ends of FLARE's connections, through a hub that relays them."""

import time
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare")

from nvflare.collab import CollabCallError
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.stats_pool import StatsPoolManager

from simfl import messages as msg
from simfl import wire
from simfl.deploy.processes import free_port
from simfl.errors import ProtocolError, SimFLError
from simfl.transport import flare, plain
from tests.deploy.waiting import LONG, within

RUN, JOB = flare.run_tag("one"), "job"
CELLS = ("server", "server.job", "server.other", "north.job", "south.job")


class Client:
    """A party, as FLARE lists it."""

    def __init__(self, name):
        self.name = name

    def get_fqcn(self):
        return self.name


class Proxy:
    """A site of FLARE's, which counts its calls."""

    def __init__(self, name):
        self.name, self.calls = name, []

    def __call__(self, timeout):
        return self

    def ask(self, *question):
        self.calls.append(question)
        return b"by a call"

    def alive(self):
        return True


@pytest.fixture(scope="module")
def cells():
    """The hub's lasting process, which relays, the ends of two jobs there, and those of one job at two parties."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(StatsPoolManager, "pools", {})  # FLARE allows a name once in a process
        url, made = f"tcp://localhost:{free_port()}", {}
        for name in CELLS:
            patch.setattr(CoreCell, "ALL_CELLS", {})  # as in processes of their own: over the network
            above = made["server"].core_cell.get_internal_listener_url() if name.startswith("server.") else None
            core = CoreCell(name, url, False, {}, create_internal_listener=name == "server", parent_url=above)
            core.start()
            stack.callback(core.stop)
            made[name] = SimpleNamespace(core_cell=core)
        patch.setattr(CoreCell, "ALL_CELLS", {})
        assert within(LONG, lambda: set(CELLS[1:]) <= set(made["server"].core_cell.agents))
        yield made


class Ends:
    """The hub's end of a job, and what was asked of a party's."""

    def __init__(self, cells):
        self.cells, self.asked, self.reply, self.aborted = cells, [], b"frame", False
        proxies = [Proxy("north"), Proxy("west"), Proxy("gone")]
        engine = SimpleNamespace(
            get_cell=lambda: cells["server.job"], get_clients=lambda: [Client("north"), Client("west")]
        )
        context = SimpleNamespace(clients=proxies, is_aborted=lambda: self.aborted)
        self.sites = plain.plain_sites(engine, JOB, context)
        self.proxies = {proxy.name: proxy for proxy in proxies}
        plain.answer_plainly(SimpleNamespace(get_cell=lambda: cells["north.job"]), JOB, self.answer)

    def answer(self, *question):
        self.asked.append(question)
        return self.reply

    def send(self, sender, payload):
        """What north answers to this message of a cell."""
        core = self.cells[sender].core_cell
        return core.send_request(plain.CHANNEL, plain.TOPIC, "north.job", Message(payload=payload), timeout=LONG)


@pytest.fixture
def ends(cells):
    return Ends(cells)


@pytest.mark.parametrize("data", [b"", b"data", bytes(range(256)) * 4096])
def test_a_question_and_its_answer_arrive_as_they_were_sent(ends, data):
    ends.reply = data + b"frame"
    assert ends.sites["north"](timeout=LONG).ask(RUN, 7, len(data), data) == data + b"frame"
    assert ends.asked == [(RUN, 7, len(data), data)]
    assert ends.proxies["north"].calls == []


@pytest.mark.parametrize("stranger", ["south.job", "server", "server.other"])
def test_only_the_hubs_end_of_the_job_may_ask(ends, stranger):
    question = plain._HEAD.pack(RUN, 7, 4) + b"data"
    assert ends.send("server.job", question).get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.OK
    ends.asked.clear()
    reply = ends.send(stranger, question)
    assert reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.INVALID_REQUEST
    assert (reply.payload, ends.asked) == (None, [])


@pytest.mark.parametrize("payload", [None, b"", b"short", {"run": RUN}, 7])
def test_what_is_no_question_is_refused(ends, payload):
    reply = ends.send("server.job", payload)
    assert reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.INVALID_REQUEST
    assert ends.asked == []


@pytest.mark.parametrize("reply", [None, 2**40, {"frame": b""}, ["frame"]])
def test_an_answer_that_is_none_is_refused_with_the_name_of_the_party(ends, reply):
    ends.reply = reply
    frame = ends.sites["north"](timeout=LONG).ask(RUN, 7, 0, b"")
    with pytest.raises(ProtocolError, match="'north'"):
        flare.unpack_frame(frame, "north", RUN, 7)


def test_a_question_that_was_not_answered_is_asked_again_by_a_call_and_the_next_is_not(ends):
    west = ends.sites["west"]
    with pytest.raises(CollabCallError, match=ReturnCode.COMM_ERROR):
        west(timeout=LONG).ask(RUN, 7, 0, b"")
    assert west(timeout=LONG).ask(RUN, 7, 0, b"") == b"by a call"
    with pytest.raises(CollabCallError):
        west(timeout=LONG).ask(RUN, 8, 0, b"")
    assert ends.proxies["west"].calls == [(RUN, 7, 0, b"")]


def test_a_job_that_flare_has_ended_asks_by_calls_which_say_so(ends):
    ends.aborted = True
    assert ends.sites["north"](timeout=LONG).ask(RUN, 7, 0, b"") == b"by a call"
    assert ends.asked == []


def test_all_else_is_called_and_a_site_that_is_not_listed_keeps_its_proxy(ends):
    assert ends.sites["north"](timeout=LONG).alive()
    assert ends.sites["gone"] is ends.proxies["gone"]


class Done(flare.SiteEnd):
    """A party's end that has done whatever it is asked."""

    def open(self, name, folder):
        pass

    def answer(self, message):
        return msg.Done()

    def answered(self, question, bytes_in, answer, bytes_out):
        pass


def test_an_answer_that_is_too_large_for_a_message_is_fetched_in_pieces():
    site, data, whole = Done(), wire.encode(msg.SumFeatures()), wire.encode(msg.Done())
    asked = (RUN, 1, len(data), data)
    assert flare.unpack_frame(site.reply(len(whole), *asked), "a", RUN, 1) == (flare._DONE, len(whole), whole)
    kind, size, body = flare.unpack_frame(site.reply(len(whole) - 1, *asked), "a", RUN, 1)
    assert (kind, size, body) == (flare._LARGE, len(whole), b"")
    assert site.more(1, 0, SimpleNamespace(caller="server")) == whole


@pytest.mark.parametrize(("most", "fetched"), [(plain.MOST, []), (0, ["question", "answer"])])
def test_a_transport_asks_by_plain_messages_and_fetches_what_is_large(ends, monkeypatch, most, fetched):
    monkeypatch.setattr(flare, "MOST", most)
    site, outbox, seen = Done(), {}, []

    def piece(number, start):
        seen.append("question")
        return outbox["north", number][start:]

    def more(number, start):
        seen.append("answer")
        return site.more(number, start, SimpleNamespace(caller="server"))

    site._hub = lambda timeout: SimpleNamespace(piece=piece)
    ends.proxies["north"].more = more
    plain.answer_plainly(SimpleNamespace(get_cell=lambda: ends.cells["north.job"]), JOB, partial(site.reply, most))
    transport = flare.FlareTransport({"north": ends.sites["north"]}, outbox, LONG, "one")
    for _ in range(3):
        assert transport.ask_all({"north": msg.SumFeatures()}) == {"north": msg.Done()}
    transport.close()
    assert (seen, ends.proxies["north"].calls) == (3 * fetched, [])


class Party(flare.SiteEnd):
    """A party's end that does what a test tells it to, and counts."""

    def __init__(self, act=msg.Done):
        super().__init__()
        self.act, self.done = act, 0
        self.hub = SimpleNamespace(piece=None)  # what the party calls
        self._hub = lambda timeout: self.hub

    def open(self, name, folder):
        pass

    def answer(self, message):
        self.done += 1
        return self.act()

    def answered(self, question, bytes_in, answer, bytes_out):
        pass


class Line:
    """A transport to north, over a real connection, with `party` at its other end."""

    def __init__(self, ends, party, most=plain.MOST, patience=LONG):
        hub, proxy = SimpleNamespace(caller="server"), ends.proxies["north"]
        self.asked, self.called, self.outbox = [], [], {}

        def reply(*question):
            self.asked.append(question)
            return party.reply(most, *question)

        def ask(*question):
            self.called.append(question)
            return party.ask(*question, hub)

        proxy.ask, proxy.more = ask, lambda number, start: party.more(number, start, hub)
        plain.answer_plainly(SimpleNamespace(get_cell=lambda: ends.cells["north.job"]), JOB, reply)
        party.hub.piece = lambda number, start: self.outbox["north", number][start : start + flare.PIECE]
        self.proxy, self.party = proxy, party
        self.transport = flare.FlareTransport({"north": ends.sites["north"]}, self.outbox, patience, "one")

    def ask(self):
        try:
            return self.transport.ask_all({"north": msg.SumFeatures()})["north"]
        finally:
            self.transport.close()


def once_in_a_while(calls, pause, work):
    """The same, but two of three calls fail, each after a pause."""

    def failing(*arguments):
        calls.append(arguments)
        if len(calls) % 3:
            time.sleep(pause)
            raise CollabCallError("north", "more", "the connection broke")
        return work(*arguments)

    return failing


def test_a_party_that_is_busy_is_asked_again_without_its_question_and_answers_once(ends, monkeypatch):
    monkeypatch.setattr(flare, "BEAT", 0.1)
    line = Line(ends, Party(lambda: time.sleep(0.5) or msg.Done()))
    assert line.ask() == msg.Done()
    assert (line.party.done, line.called) == (1, [])
    first, *others = [data for *_, data in line.asked]
    assert first == wire.encode(msg.SumFeatures())
    assert len(others) >= 2
    assert set(others) == {b""}


def test_an_answer_that_comes_too_late_is_asked_for_again_by_a_call_and_not_worked_out_again(ends, monkeypatch):
    monkeypatch.setattr(
        flare, "CALL_TIMEOUT", 0.3
    )  # the plain message is given up before the party says that it is busy
    line = Line(ends, Party(lambda: time.sleep(0.8) or msg.Done()))
    assert line.ask() == msg.Done()
    assert line.party.done == 1
    assert len(line.asked) == 1
    assert len(line.called) >= 1


def test_a_large_answer_is_not_lost_while_its_pieces_arrive(ends, monkeypatch):
    monkeypatch.setattr(flare, "PIECE", 2)
    line, pieces = Line(ends, Party(), most=0, patience=1.0), []
    line.proxy.more = once_in_a_while(pieces, 0.05, line.proxy.more)
    assert line.ask() == msg.Done()
    size = len(wire.encode(msg.Done()))
    assert size > 6  # so that it takes longer than the patience
    assert [start for _, start in pieces] == [start for start in range(0, size, 2) for _ in range(3)]


def test_a_large_question_survives_a_connection_that_breaks(ends, monkeypatch):
    monkeypatch.setattr(flare, "MOST", 0)
    line, pieces = Line(ends, Party()), []
    line.party.hub.piece = once_in_a_while(pieces, 0, line.party.hub.piece)
    assert line.ask() == msg.Done()
    assert (line.party.done, len(pieces)) == (1, 3)


def test_a_piece_that_comes_too_late_is_asked_for_again():
    party, timeouts, asked = Party(), [], []
    party.hub.piece = once_in_a_while(asked, 0, lambda number, start: wire.encode(msg.SumFeatures()))
    party._hub = lambda timeout: timeouts.append(timeout) or party.hub
    size = len(wire.encode(msg.SumFeatures()))
    assert flare.unpack_frame(party.reply(plain.MOST, RUN, 1, size, b""), "a", RUN, 1)[0] == flare._DONE
    assert len(timeouts) == 3
    assert max(timeouts) < flare.PERSIST / 3  # also where every call is given up only then


@pytest.mark.parametrize(("newest", "tries"), [(4, 3), (5, 3), (6, 1)])
def test_a_piece_is_asked_for_again_until_a_newer_question_comes(newest, tries):
    """The thread that works on a question may begin before its number is noted."""
    party, asked = Party(), []
    party.hub.piece, party._number = once_in_a_while(asked, 0, lambda number, start: b"piece"), newest
    if tries == 1:
        with pytest.raises(CollabCallError):
            party._piece(5, 0)
    else:
        assert party._piece(5, 0) == b"piece"
    assert len(asked) == tries


def test_a_question_that_is_out_of_reach_is_given_up_and_the_next_one_is_answered(ends, monkeypatch):
    monkeypatch.setattr(flare, "PERSIST", 0.3)
    party, asked = Party(), []
    party.hub.piece = once_in_a_while(asked, 0.2, None)
    kind, _, body = flare.unpack_frame(party.reply(plain.MOST, RUN, 1, 10, b""), "a", RUN, 1)
    assert (kind, body) == (flare._FAILED, b"something went wrong (its own log says what)")
    data = wire.encode(msg.SumFeatures())
    assert flare.unpack_frame(party.reply(plain.MOST, RUN, 2, len(data), data), "a", RUN, 2)[0] == flare._DONE


def test_a_party_cannot_speak_in_the_name_of_another_or_to_a_terminal(ends):
    def lie():
        raise ProtocolError("Party 'south': its table cannot be used.\x1b[2J\nbye " + "x" * 10_000)

    with pytest.raises(SimFLError) as caught:
        Line(ends, Party(lie)).ask()
    text = str(caught.value)
    assert text.startswith("Party 'north': Party 'south': its table cannot be used. [2J bye x")
    assert text.isprintable()
    assert len(text) < 4000


def test_a_party_that_refuses_does_not_leave_another_at_work(ends, monkeypatch):
    monkeypatch.setattr(flare, "BEAT", 0.1)
    working = []

    def slow(run, number, size, data):
        working.append(number)
        time.sleep(0.6)
        working.append("done")
        return flare.pack_frame(flare._DONE, wire.encode(msg.Done()), run, number)

    def refuse():
        raise ProtocolError("no.")

    line = Line(ends, Party(refuse))
    line.transport.sites["south"] = lambda timeout: SimpleNamespace(ask=slow)
    with pytest.raises(SimFLError, match="Party 'north': no"):
        line.transport.ask_all({"north": msg.SumFeatures(), "south": msg.SumFeatures()})
    assert working[-1] == "done"
    line.transport.close()


def test_a_party_that_says_at_once_that_it_is_busy_is_not_asked_without_a_pause(monkeypatch):
    monkeypatch.setattr(flare, "PAUSE", 0.1)
    asked = []

    def ask(run, number, size, data):
        asked.append(data)
        kind = flare._BUSY if len(asked) < 4 else flare._DONE
        return flare.pack_frame(kind, b"" if kind == flare._BUSY else wire.encode(msg.Done()), run, number)

    transport = flare.FlareTransport({"north": lambda timeout: SimpleNamespace(ask=ask)}, {}, LONG, "one")
    begun = time.monotonic()
    assert transport.ask_all({"north": msg.SumFeatures()}) == {"north": msg.Done()}
    assert time.monotonic() - begun > 0.3
    transport.close()


def test_what_a_party_refuses_is_logged_at_once_and_told_before_that_somebody_stopped(caplog):
    def refuse(run, number, size, data):
        return flare.pack_frame(flare._FAILED, b"no rows.", run, number)

    def busy(run, number, size, data):
        assert within(LONG, lambda: "no rows" in caplog.text)
        transport.stop("by the operator")
        return flare.pack_frame(flare._BUSY, b"", run, number)

    sites = {name: lambda timeout, ask=ask: SimpleNamespace(ask=ask) for name, ask in (("b", busy), ("a", refuse))}
    transport = flare.FlareTransport(sites, {}, LONG, "one")
    with pytest.raises(SimFLError, match="Party 'a': no rows"):
        transport.ask_all({"b": msg.SumFeatures(), "a": msg.SumFeatures()})
    transport.close()


def test_a_question_that_nobody_can_work_on_does_not_get_the_answer_before_it():
    party, data = Party(), wire.encode(msg.SumFeatures())
    assert flare.unpack_frame(party.reply(plain.MOST, RUN, 1, len(data), data), "a", RUN, 1)[0] == flare._DONE
    party.finish()
    with pytest.raises(RuntimeError, match="after shutdown"):
        party.reply(plain.MOST, RUN, 2, len(data), data)
    kind, *_ = flare.unpack_frame(party.reply(plain.MOST, RUN, 1, len(data), data), "a", RUN, 1)
    assert kind == flare._DONE
