"""The Protean of the scenario drain: python drain.py POSTGRESQL REDIS

It makes its tables in the database, files one paper, and says "ready". Whoever
started it clones the row and answers with a line; then an engine publishes.
"""

import random
import sys

from protean import Domain
from protean.fields import Text
from protean.server import Engine

postgresql, redis = sys.argv[1:]
desk = Domain(
    name="desk",
    config={
        "databases": {"default": {"provider": "postgresql", "database_uri": postgresql}},
        "brokers": {"default": {"provider": "redis", "URI": redis}},
        # What was fastest of several settings, with one worker.
        "outbox": {"messages_per_tick": 1000, "tick_interval": 0},
        "observatory": {"trace_retention_days": 0},
        # With this there is an outbox.
        "server": {"default_subscription_type": "stream", "health": {"enabled": False}},
        "logging": {"level": "WARNING"},
    },
)


@desk.event(part_of="Paper")
class PaperFiled:
    text = Text()


@desk.aggregate
class Paper:
    text = Text()


desk.init(traverse=False)
with desk.domain_context():
    desk.setup_database()
    paper = Paper(text=random.randbytes(244).hex())
    paper.raise_(PaperFiled(text=paper.text))
    desk.repository_for(Paper).add(paper)
print("ready", flush=True)
if sys.stdin.readline():
    Engine(desk).run()
