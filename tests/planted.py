"""A worker for the fuzzer whose cases end as their numbers say."""

import os
import time
from functools import partial
from multiprocessing.connection import Connection

from runtime.errors import BundleError
from scripts.fuzz import judged, limit_memory

ACCEPTED, REFUSED, RAISED, GREEDY, CRASHED, ENDLESS = range(6)


def act(number: int) -> None:
    if number == REFUSED:
        raise BundleError("This is fine.")
    if number == RAISED:
        raise IndexError("a planted mistake")
    if number == GREEDY:
        bytearray(1 << 34)
    if number == CRASHED:
        os.abort()
    if number == ENDLESS:
        time.sleep(600)


def work(connection: "Connection[object, tuple[str, int]]") -> None:
    limit_memory(1 << 30)
    connection.send(None)
    while True:
        try:
            _, number = connection.recv()
        except EOFError:
            return
        connection.send(judged(partial(act, number)))
