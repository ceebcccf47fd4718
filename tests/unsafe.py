"""A transport that loses parties, or is killed, at any question."""

from simfl.errors import PartyLost
from simfl.transport.local import LocalTransport


class Killed(BaseException):
    """What nobody catches."""


class Unsafe(LocalTransport):
    """Parties in this process that can be cut off; and the whole of it can be killed after n questions."""

    def __init__(self, handlers, kill_after=10**9):
        super().__init__(handlers, 1)
        self.left, self.asked, self.cut_off = kill_after, 0, {}  # party -> (from question, to question)

    def gone(self, party):
        first, last = self.cut_off.get(party, (1, 0))
        return first <= self.asked <= last

    def ask_all(self, messages):
        self.asked, self.left = self.asked + 1, self.left - 1
        lost = [party for party in messages if self.gone(party)]
        replies = {}
        for party, message in messages.items():
            if self.left <= 0 and len(replies) == len(messages) // 2:
                raise Killed  # some have answered, some have not
            if party not in lost:
                replies |= super().ask_all({party: message})
        if lost:
            raise PartyLost(lost, "cut off.")
        return replies

    def returned(self):
        return [party for party in self.handlers if party not in self.parties and not self.gone(party)]
