"""A partner in Python: reads CloudEvents from a topic of Kafka, from the first
message on, and prints each as a line of JSON.

    python partner.py --kafka 127.0.0.1:9092 --topic partner.ordering.order --count 10

It takes structured and binary mode as they come, and ends with status 1 at the
first message that the reader of the package cloudevents refuses. All that it
knows of the service is in its command line.
"""

import argparse
import json
import signal
import sys

from cloudevents.core.bindings import kafka as binding
from kafka import KafkaConsumer
from kafka.errors import KafkaError


def read(record):
    """The CloudEvent of a Kafka record."""
    headers = {name.lower(): value for name, value in record.headers}
    if not headers.get("content-type", b"").startswith(b"application/cloudevents") and "ce_specversion" not in headers:
        raise ValueError("it is no CloudEvent")
    # Without its key, which the reader would take for an attribute.
    return binding.from_kafka_event(binding.KafkaMessage(headers=headers, key=None, value=record.value))


def line(event):
    attributes = {name: str(value) for name, value in event.get_attributes().items() if name != "time"}
    attributes["time"] = event.get_time().isoformat()
    return json.dumps({"attributes": attributes, "data": event.get_data()}, ensure_ascii=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kafka", required=True, metavar="HOST:PORT")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--count", type=int, default=0, help="end after so many messages; 0: never")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return follow(options)
    except KafkaError as failed:
        print(f"partner: {failed}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def follow(options):
    consumer = KafkaConsumer(options.topic, bootstrap_servers=options.kafka, auto_offset_reset="earliest", enable_auto_commit=False)
    try:
        for number, record in enumerate(consumer, start=1):
            try:
                event = read(record)
            except Exception as refused:
                print(f"partner: message {record.offset} of partition {record.partition}: {refused}", file=sys.stderr)
                return 1
            print(line(event), flush=True)
            if number == options.count:
                return 0
    finally:
        consumer.close()


if __name__ == "__main__":
    sys.exit(main())
