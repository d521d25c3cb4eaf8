"""Which nodes a client knows, and which one to ask: any of them, the leader with an id, or the coordinator. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from brokerd.errors import BrokerUnreachableError

ANY_NODE = -1  # as a node id: whichever can be reached


class Nodes:
    """Addresses (host:port) of a cluster's nodes, from bootstrap.servers and from the newest metadata."""

    def __init__(self, bootstrap: Sequence[str]) -> None:
        """`bootstrap`: at least one address."""
        self._bootstrap = tuple(bootstrap)
        self._by_id: dict[int, str] = {}
        self._ids: dict[str, int] = {}  # of the nodes that answered, by address: one node may have several
        self.any = self._bootstrap[0]  # where calls go that each node can answer
        self.coordinator: str | None = None
        self.is_coordinator_lost = False  # it must be looked up; else any node is asked, which may be the coordinator itself

    @property
    def addresses(self) -> tuple[str, ...]:
        """All known addresses, those of bootstrap.servers first."""
        return tuple(dict.fromkeys((*self._bootstrap, *self._by_id.values())))

    @property
    def are_several(self) -> bool:
        """True if the newest metadata lists more than one node."""
        return len(self._by_id) > 1

    def address(self, node_id: int) -> str:
        """A node's address; that of any node for ANY_NODE, and while no nodes are known. Raises BrokerUnreachableError for a node
        that is not alive: another one in its place would refuse its requests for ever."""
        if node_id == ANY_NODE or not self._by_id:
            return self.any
        if node_id not in self._by_id:
            raise BrokerUnreachableError(f"node {node_id} is not alive, as the other nodes say")
        return self._by_id[node_id]

    def id_at(self, address: str) -> int | None:
        """The id of the node that answered at an address; None if none did."""
        return self._ids.get(address)

    def answered(self, address: str, node_id: int) -> None:
        """Notes which node is at an address."""
        self._ids[address] = node_id

    def found(self, addresses: Mapping[int, str]) -> None:
        """Takes the nodes of new metadata: a node that is missing there, or has another address, is not asked again."""
        self._by_id = dict(addresses)
        if self.any not in self.addresses:
            self.any = next(iter(self._by_id.values()), self._bootstrap[0])

    def failed(self, address: str) -> None:
        """Moves on from an address that did not answer: `any` becomes the next one, of another node if possible."""
        if self.coordinator == address:
            self.coordinator_lost(address)
        self.ask_another(address)

    def ask_another(self, address: str) -> None:
        """Makes `any` another node than the one at `address`, if there is one."""
        if self._is_same_node(self.any, address):
            addresses = self.addresses
            at = addresses.index(self.any)
            others = (*addresses[at + 1 :], *addresses[:at])
            self.any = next((one for one in others if not self._is_same_node(one, address)), (*others, address)[0])

    def coordinator_lost(self, address: str) -> None:
        """Notes that this node is not, or no longer, the coordinator."""
        if self.coordinator in (None, address):
            self.coordinator, self.is_coordinator_lost = None, True

    def coordinator_found(self, address: str) -> None:
        """Notes which node is the coordinator."""
        self.coordinator, self.is_coordinator_lost = address, False

    def unused(self, addresses: Iterable[str]) -> list[str]:
        """Those of `addresses` that no known node has."""
        known = {*self.addresses, self.coordinator}
        return [address for address in addresses if address not in known]

    def _is_same_node(self, one: str, other: str) -> bool:
        return one == other or (one in self._ids and self._ids[one] == self._ids.get(other))
