"""A port of this machine behind which another one is: each connection goes on to there, and back. Subclasses change what goes by."""

import socket
import threading


class Relay:
    def __init__(self, target):
        self.target = target
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.n = 0  # connections so far
        self.ends = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return  # closed
            self.n += 1
            try:
                far = self.connect()
            except OSError:
                near.close()
                continue
            self.ends += [near, far]
            for source, sink, is_answer in ((near, far, False), (far, near, True)):
                threading.Thread(target=self._carry, args=(source, sink, is_answer), daemon=True).start()

    def _carry(self, source, sink, is_answer):
        try:
            for piece in self.pieces(source, is_answer):
                sink.sendall(piece)
        except OSError:
            pass
        for end in (source, sink):
            self._end(end)

    @staticmethod
    def _end(end):
        """Another thread may read it: a close() alone would not end that."""
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended

    def connect(self):
        """To the target; an OSError ends the connection that came."""
        return socket.create_connection(self.target)

    def pieces(self, source, is_answer):
        """What goes on of that which `source` has sent, until one of both ends."""
        del is_answer
        while data := source.recv(1 << 16):
            yield data

    def close(self):
        self.listener.close()
        for end in self.ends:
            self._end(end)
            end.close()
