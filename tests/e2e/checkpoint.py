"""Taking safetensors files apart and putting them together wrong."""

import json
import shutil
import struct


def read(path):
    """{name: (dtype, shape, bytes)}"""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    start = 8 + length
    return {name: (entry["dtype"], entry["shape"],
                   data[start + entry["data_offsets"][0]:start + entry["data_offsets"][1]])
            for name, entry in header.items()}


def write(path, tensors):
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text +
                     b"".join(data for _, _, data in tensors.values()))


def copy_model(source, target):
    """A copy whose files may be changed."""
    target.mkdir()
    for path in source.iterdir():
        if path.is_file():
            shutil.copyfile(path, target / path.name)
    return target


def shard_of(directory, ending):
    """(path, tensors, name) of the first tensor whose name ends so."""
    for path in sorted(directory.glob("*.safetensors")):
        tensors = read(path)
        for name in sorted(tensors):
            if name.endswith(ending):
                return path, tensors, name
    raise AssertionError(f"no tensor *{ending} in {directory}")


def forget_in_index(directory, name):
    """Takes a tensor out of the index too, if there is one."""
    index = directory / "model.safetensors.index.json"
    if index.exists():
        content = json.loads(index.read_text())
        content["weight_map"].pop(name, None)
        index.write_text(json.dumps(content))
