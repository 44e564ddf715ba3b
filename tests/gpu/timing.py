"""One collective of all ranks that is checked once and then timed: as CUDA graphs of many, or call by call on
the host device."""


class Timed:
    """`works` are the buffers of all ranks (`cases.RankWork`), `count` how many operations a graph holds."""

    def __init__(self, layer, streams, communicator, works, count):
        self.layer, self.streams = layer, streams
        self.communicator, self.works = communicator, works
        self.count, self.graphs = 3 if layer.on_host else count, None

    def wrong(self):
        """Runs it once; wrong bytes by rank, none if all are right."""
        for work in self.works:
            with self._on(work):
                work.fill()
        self.issue()
        counts = []
        for work in self.works:
            with self._on(work):
                counts.append(work.wrong())
        self.layer.synchronize()
        counts = [self.layer.number(count) for count in counts]
        return counts if any(counts) else []

    def capture(self):
        """Makes the graphs, where there are any."""
        if not self.layer.on_host:
            self.layer.synchronize()
            self.graphs = self.layer.capture(list(enumerate(self.streams)), self._many)

    def microseconds(self):
        """The time of an operation. A first replay is under way when the clock starts, so that all ranks
        are."""
        if self.graphs is None:
            start = self.layer.mark(0, None)
            self._many()
            return self.layer.seconds(start, self.layer.mark(0, None)) / self.count * 1e6
        self._replay()
        start = self.layer.mark(0, self.streams[0])
        self._replay()
        self._replay()
        end = self.layer.mark(0, self.streams[0])
        us = self.layer.seconds(start, end) / (2 * self.count) * 1e6
        self.layer.synchronize()
        return us

    def end(self):
        if self.graphs:
            self.layer.drop(self.graphs)

    def issue(self):
        with self.communicator.library.group():
            for work in self.works:
                work.issue(self.communicator, self.layer.handle(self.streams[work.place]))

    def _many(self):
        for _ in range(self.count):
            self.issue()

    def _replay(self):
        for place, graph in enumerate(self.graphs):
            self.layer.replay(place, graph, self.streams[place])

    def _on(self, work):
        self.layer.use(work.place)
        return self.layer.on(self.streams[work.place])
