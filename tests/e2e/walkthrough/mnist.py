"""A training script as users have them: joins its peers, prints losses, writes TensorBoard events.

It trains until a file says that it is enough, so that a test can look at it as long as it likes.
"""

import argparse
import os
import struct
import time
from pathlib import Path

import torch
import torch.distributed as dist


def masked_checksum(content: bytes) -> int:
    """CRC-32C as TensorFlow's record files mask it."""
    value = 0xFFFFFFFF
    for byte in content:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    value ^= 0xFFFFFFFF
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def record(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    check = struct.pack("<I", masked_checksum(length))
    return length + check + event + struct.pack("<I", masked_checksum(event))


def scalar(step: int, loss: float) -> bytes:
    value = field(1, b"loss") + b"\x15" + struct.pack("<f", loss)
    event = b"\x09" + struct.pack("<d", time.time()) + b"\x10" + bytes([step])
    return record(event + field(5, field(1, value)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--dir", required=True)
    parser.add_argument("--until", required=True)
    given = parser.parse_args()
    dist.init_process_group(given.backend)
    rank = dist.get_rank()
    print(f"WORLD_SIZE: {dist.get_world_size()}, CURRENT_RANK: {rank}", flush=True)
    print(f"args: {given}", flush=True)
    os.makedirs(given.dir, exist_ok=True)
    version = record(b"\x09" + struct.pack("<d", time.time()) + field(3, b"brain.Event:2"))
    with Path(given.dir, f"events.out.tfevents.{int(time.time())}.rank{rank}").open("wb") as file:
        file.write(version)
        for epoch in range(1, given.epochs + 1):
            loss = torch.full((1,), 1.0 / epoch)
            dist.all_reduce(loss)
            print(f"Train Epoch: {epoch} loss={loss.item():.4f}", flush=True)
            file.write(scalar(epoch, loss.item()))
            file.flush()
    while not os.path.exists(given.until):
        time.sleep(0.2)
    dist.barrier()
    print("accuracy=0.9904", flush=True)


if __name__ == "__main__":
    main()
