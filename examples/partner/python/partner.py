"""A partner in Python: reads CloudEvents from a topic of Kafka or a subject of NATS
JetStream, from the first message on, and prints each as a line of JSON.

    python partner.py --kafka 127.0.0.1:9092 --topic partner.ordering.order --count 10
    python partner.py --nats nats://127.0.0.1:4222 --nkey shop-data/nats/client.nk --topic partner.ordering.order

It takes structured and binary mode as they come, and ends with status 1 at the
first message that the reader of the package cloudevents refuses. All that it
knows of the service is in its command line.
"""

import argparse
import asyncio
import json
import signal
import sys

import nats
from cloudevents.core.bindings import http, kafka
from kafka import KafkaConsumer
from kafka.errors import KafkaError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

BATCH = 100
PATIENCE = 5  # with which new messages are waited for, in seconds
PAUSE = 0.5  # before it is asked again, in seconds


class Refused(Exception):
    """A message that can't be read, and which one."""


def read(where, headers, parse):
    """The CloudEvent of a message with these headers, by a binding of the package cloudevents."""
    content_type = headers.get("content-type", "")
    if not content_type.startswith("application/cloudevents") and not {"ce_specversion", "ce-specversion"} & headers.keys():
        raise Refused(f"{where}: it is no CloudEvent")
    try:
        return parse()
    except Exception as refused:
        raise Refused(f"{where}: {refused}") from refused


def show(event):
    attributes = {name: str(value) for name, value in event.get_attributes().items() if name != "time"}
    attributes["time"] = event.get_time().isoformat()
    print(json.dumps({"attributes": attributes, "data": event.get_data()}, ensure_ascii=False), flush=True)


def follow_kafka(options):
    consumer = KafkaConsumer(options.topic, bootstrap_servers=options.kafka, auto_offset_reset="earliest", enable_auto_commit=False)
    try:
        for number, record in enumerate(consumer, start=1):
            headers = {name.lower(): value for name, value in record.headers}
            # Without its key, which the reader would take for an attribute.
            message = kafka.KafkaMessage(headers=headers, key=None, value=record.value)
            texts = {name: value.decode() for name, value in headers.items()}
            show(read(f"message {record.offset} of partition {record.partition}", texts, lambda m=message: kafka.from_kafka_event(m)))
            if number == options.count:
                return
    finally:
        consumer.close()


async def follow_nats(options):
    connection = await nats.connect(options.nats, nkeys_seed=options.nkey, max_reconnect_attempts=-1, error_cb=complain)
    number = last = 0
    try:
        while True:
            try:
                messages = await after(connection.jetstream(), options.topic, last)
                for m in await messages.fetch(BATCH, timeout=PATIENCE):
                    # The binding of NATS names headers as that of HTTP does.
                    headers = {name.lower(): value for name, value in (m.headers or {}).items()}
                    message = http.HTTPMessage(headers=headers, body=m.data)
                    last = m.metadata.sequence.stream
                    show(read(f"message {last}", headers, lambda m=message: http.from_http_event(m)))
                    number += 1
                    if number == options.count:
                        return
                await messages.unsubscribe()
            except nats.errors.TimeoutError:
                pass  # Nothing is new, or the server was away.
            except nats.errors.Error as failed:  # There is no such subject yet, or the server is away.
                await complain(failed)
                await asyncio.sleep(PAUSE)
    finally:
        await connection.close()


async def complain(failed):
    print(f"partner: {failed or type(failed).__name__}; trying again", file=sys.stderr)


async def after(stream, subject, last):
    """What comes behind a message. A server that was started again has forgotten who reads, so each batch has a consumer of its own."""
    config = ConsumerConfig(
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=last + 1, ack_policy=AckPolicy.NONE, inactive_threshold=2 * PATIENCE
    )
    return await stream.pull_subscribe(subject, config=config)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    server = parser.add_mutually_exclusive_group(required=True)
    server.add_argument("--kafka", metavar="HOST:PORT")
    server.add_argument("--nats", metavar="URL")
    parser.add_argument("--nkey", metavar="FILE", help="the key that the NATS server wants, if it does")
    parser.add_argument("--topic", required=True, help="the topic, or the subject")
    parser.add_argument("--count", type=int, default=0, help="end after so many messages; 0: never")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        asyncio.run(follow_nats(options)) if options.nats else follow_kafka(options)
    except (KafkaError, nats.errors.Error, Refused, OSError) as failed:
        print(f"partner: {failed}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
