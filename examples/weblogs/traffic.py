"""Web-server log lines as a shop's server might write them: visitors, crawlers, a day's rhythm, trouble.

    traffic = Traffic(seed=7, rate=100)
    lines = traffic.until(time.time())          # all that happened since the last call, in order

Visitors come by day more than by night, look at a few pages with pauses in between, and their browsers
fetch what pages consist of. Crawlers walk through the catalogue steadily and hit dead links. Now and
then the application behind the server fails for a while, and many of its answers are 5xx.

The lines are in the combined format of Apache and nginx. The same seed and times give the same lines.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

PAGES_OF_A_VISIT: Final = 4.0  # on average
FILES_OF_A_PAGE: Final = 1.5  # that the browser has to fetch, on average
TROUBLE_EVERY: Final = 150.0  # seconds from the end of one to the beginning of the next, on average
TROUBLE_LASTS: Final = (15.0, 40.0)  # seconds
CRAWLERS: Final = 3

_PRODUCTS: Final = [
    f"/product/{name}-{number}"
    for number, name in enumerate(
        ("kettle", "lamp", "chair", "desk", "clock", "mug", "shelf", "rug", "vase", "stool") * 12,
        start=1,
    )
]
_PLACES: Final = ("/", "/search", "/cart", "/about", "/blog/autumn", "/blog/how-we-pack", "/help")
_PLACE_WEIGHTS: Final = (30, 14, 9, 3, 6, 4, 3)
_FILES: Final = (
    "/static/app.css",
    "/static/app.js",
    "/static/logo.svg",
    "/static/fonts/text.woff2",
)
_DEAD_LINKS: Final = ("/wp-login.php", "/.env", "/old-shop/index.html", "/product/discontinued-0")
_WORDS: Final = ("lamp", "blue+mug", "oak+desk", "gift", "rug+200x300")
_SOURCES: Final = (
    "-",
    "https://www.google.com/",
    "https://duckduckgo.com/",
    "https://news.example/",
)
_BROWSERS: Final = (
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/142.0 Safari/537.36",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 19_1 like Mac OS X) AppleWebKit/605.1.15 Safari/604.1",
    "Mozilla/5.0 (X11; Linux x86_64; rv:145.0) Gecko/20100101 Firefox/145.0",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 15_1) AppleWebKit/605.1.15 Version/19.1 Safari/605.1.15",
)
_CRAWLER_NAMES: Final = (
    "Googlebot/2.1 (+http://www.google.com/bot.html)",
    "bingbot/2.0 (+http://www.bing.com/bingbot.htm)",
    "python-requests/2.32",
)
_MONTHS: Final = [
    "Jan",
    "Feb",
    "Mar",
    "Apr",
    "May",
    "Jun",
    "Jul",
    "Aug",
    "Sep",
    "Oct",
    "Nov",
    "Dec",
]


@dataclass(order=True, slots=True)
class _Event:
    at: float
    number: int  # of two at the same time, the one that was planned first
    happens: Callable[[float], None] = field(compare=False)


class Traffic:
    """What happens on the site from `start` on; `rate` is requests a second, over a day."""

    def __init__(self, seed: int, rate: float, start: float | None = None) -> None:
        self._chance = random.Random(seed)
        self._rate = rate
        self._events: list[_Event] = []
        self._numbers = itertools.count()
        self._lines: list[str] = []
        self._stamp: tuple[int, str] = (0, "")
        self._trouble_until = 0.0
        self._trouble_share = 0.0
        self.start = time.time() if start is None else start
        self._plan(self.start, self._visitor_comes)
        self._plan(self.start + 20.0, self._trouble_begins)
        for number in range(CRAWLERS):
            name = _CRAWLER_NAMES[number % len(_CRAWLER_NAMES)]
            address = f"198.51.100.{10 + number}"
            self._plan(self.start + number, partial(self._crawl, address=address, name=name))

    def until(self, now: float) -> list[str]:
        """The lines of all requests before `now` that were not asked for yet."""
        while self._events and self._events[0].at < now:
            event = heapq.heappop(self._events)
            event.happens(event.at)
        lines, self._lines = self._lines, []
        return lines

    def _plan(self, at: float, happens: Callable[[float], None]) -> None:
        heapq.heappush(self._events, _Event(at, next(self._numbers), happens))

    # Visitors

    def _visitor_comes(self, at: float) -> None:
        chance = self._chance
        address = f"203.0.{chance.randrange(114)}.{chance.randrange(1, 255)}"
        agent = chance.choice(_BROWSERS)
        pages = 1 + int(chance.expovariate(1 / (PAGES_OF_A_VISIT - 1)))
        self._view(at, address, agent, chance.choice(_SOURCES), pages)
        visits = self._rate * _time_of_day(at) / (PAGES_OF_A_VISIT * (1 + FILES_OF_A_PAGE))
        self._plan(at + chance.expovariate(max(visits, 1e-3)), self._visitor_comes)

    def _view(self, at: float, address: str, agent: str, source: str, left: int) -> None:
        chance = self._chance
        page = self._page()
        status = self._status(at)
        method = "POST" if page == "/cart" and chance.random() < 0.5 else "GET"
        self._write(
            at, address, method, page, status, chance.randrange(4_000, 60_000), source, agent
        )
        own = f"https://shop.example{page}"
        if status == 200:
            for _ in range(int(chance.expovariate(1 / FILES_OF_A_PAGE) + 0.5)):
                file = chance.choice(_FILES)
                known = 304 if chance.random() < 0.6 else 200
                size = 0 if known == 304 else chance.randrange(900, 250_000)
                self._write(at, address, "GET", file, known, size, own, agent)
        if left > 1:
            pause = chance.lognormvariate(1.2, 0.8)
            following = partial(self._view, address=address, agent=agent, source=own, left=left - 1)
            self._plan(at + pause, following)

    def _page(self) -> str:
        chance = self._chance
        if chance.random() < 0.55:
            # Few products are asked for much more often than most.
            rank = int(len(_PRODUCTS) * chance.random() ** 3)
            return _PRODUCTS[rank]
        page = chance.choices(_PLACES, _PLACE_WEIGHTS)[0]
        return f"{page}?q={chance.choice(_WORDS)}" if page == "/search" else page

    # Crawlers

    def _crawl(self, at: float, address: str, name: str, step: int = 0) -> None:
        if step % 50 == 0:
            page, status = "/robots.txt", 200
        elif self._chance.random() < 0.15:
            page, status = self._chance.choice(_DEAD_LINKS), 404
        else:
            page, status = _PRODUCTS[step % len(_PRODUCTS)], self._status(at)
        size = 162 if status == 404 else self._chance.randrange(200, 40_000)
        self._write(at, address, "GET", page, status, size, "-", name)
        every = CRAWLERS * 20 / max(self._rate, 1e-3)  # one request in twenty is a crawler's
        self._plan(at + every, partial(self._crawl, address=address, name=name, step=step + 1))

    # Trouble

    def _trouble_begins(self, at: float) -> None:
        lasts = self._chance.uniform(*TROUBLE_LASTS)
        self._trouble_until = at + lasts
        self._trouble_share = self._chance.uniform(0.4, 0.8)
        pause = self._chance.expovariate(1 / TROUBLE_EVERY)
        self._plan(at + lasts + pause, self._trouble_begins)

    def _status(self, at: float) -> int:
        share = self._trouble_share if at < self._trouble_until else 0.002
        return self._chance.choice((500, 502, 503)) if self._chance.random() < share else 200

    # Lines

    def _write(
        self,
        at: float,
        address: str,
        method: str,
        page: str,
        status: int,
        size: int,
        source: str,
        agent: str,
    ) -> None:
        length = 341 if status >= 500 else size
        self._lines.append(
            f"{address} - - [{self._time(at)}] "
            f'"{method} {page} HTTP/1.1" {status} {length} "{source}" "{agent}"'
        )

    def _time(self, at: float) -> str:
        second = int(at)
        if self._stamp[0] != second:
            t = time.gmtime(second)
            text = f"{t.tm_mday:02}/{_MONTHS[t.tm_mon - 1]}/{t.tm_year}"
            self._stamp = second, f"{text}:{t.tm_hour:02}:{t.tm_min:02}:{t.tm_sec:02} +0000"
        return self._stamp[1]


def _time_of_day(at: float) -> float:
    """How much busier than on average it is: most at three in the afternoon, least at three at night."""
    hour = at % 86_400 / 3_600
    return 1 + 0.6 * math.cos(2 * math.pi * (hour - 15) / 24)
