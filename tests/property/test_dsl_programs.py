"""What holds for every program: forms round-trip, D undoes G, blocks stand alone, damage is typed."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brevisfs.dsl import (
    Add,
    BitReverse,
    Concat,
    Const,
    Function,
    Gray,
    Huffman,
    Lit,
    Map,
    Merge,
    Node,
    Pack,
    Palette,
    ProgramError,
    Raw,
    Repeat,
    RotR,
    Scan,
    Select,
    Xor,
    ZigZag,
    check,
    from_wire,
    parse_text,
    to_text,
    to_wire,
)
from brevisfs.dsl.reference import (
    Malformed,
    NotApplicable,
    apply,
    build_shared,
    decode_block,
    encode_block,
    flatten,
    invert,
    sliced,
    sliced_size,
    unflatten,
    unsliced,
)
from tests.programs import (
    composition,
    random_case,
    random_encoding,
    random_function,
    random_program,
    random_type,
)

seeds = st.integers(0, 2**64 - 1)
widths = st.integers(1, 64)


@st.composite
def streams(draw: st.DrawFn, max_size: int = 600) -> tuple[int, list[int]]:
    """A width and words of it."""
    bits = draw(widths)
    return bits, draw(st.lists(st.integers(0, 2**bits - 1), max_size=max_size))


@given(seeds)
def test_forms_round_trip(seed: int) -> None:
    rng = random.Random(seed)
    bits, count, _ = random_type(rng)
    node = random_program(rng, bits, count)
    assert from_wire(to_wire(node), bits, count) == node
    assert parse_text(to_text(node)) == node


@given(seeds)
@settings(max_examples=300, deadline=None)
def test_every_block_decodes_alone(seed: int) -> None:
    case = random_case(random.Random(seed))
    blocks = list(enumerate(case.payloads))
    random.Random(seed).shuffle(blocks)
    for index, payload in blocks:
        lo = index * case.block
        words = decode_block(case.node, case.bits, case.count, case.block, index, case.shared, payload)
        assert words == case.words[lo : lo + case.block]


@given(st.binary(max_size=80), widths, st.integers(1, 2**40))
@settings(max_examples=500)
def test_random_bytes_are_a_program_or_refused(data: bytes, bits: int, count: int) -> None:
    try:
        node = from_wire(data, bits, count)
    except ProgramError:
        return
    check(node, bits, count)
    assert to_wire(node) == data


@given(seeds)
@settings(max_examples=500)
def test_a_damaged_program_is_another_program_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    bits, count, _ = random_type(rng)
    data = damaged(rng, to_wire(random_program(rng, bits, count)))
    try:
        node = from_wire(data, bits, count)
    except ProgramError:
        return
    assert to_wire(node) == data


@given(st.text(max_size=60))
def test_random_text_is_a_program_or_refused(text: str) -> None:
    try:
        node = parse_text(text)
    except ProgramError:
        return
    assert parse_text(to_text(node)) == node


@given(seeds)
@settings(max_examples=300, deadline=None)
def test_damaged_blocks_decode_or_are_malformed(seed: int) -> None:
    rng = random.Random(seed)
    case = random_case(rng)
    index = rng.randrange(len(case.payloads))
    shared, payload = case.shared, case.payloads[index]
    if rng.random() < 0.5:
        shared = damaged(rng, shared)
    else:
        payload = damaged(rng, payload)
    try:
        words = decode_block(case.node, case.bits, case.count, case.block, index, shared, payload)
    except Malformed:
        return
    assert len(words) == len(case.words[index * case.block : (index + 1) * case.block])
    assert all(0 <= word < 1 << case.bits for word in words)


def damaged(rng: random.Random, data: bytes) -> bytes:
    """`data` with a few bytes changed, dropped or put in."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randint(0, len(out))
        match rng.choice(("change", "drop", "insert")):
            case "change":
                out[at : at + 1] = rng.randbytes(1)
            case "drop":
                del out[at : at + rng.randint(1, 4)]
            case _:
                out[at:at] = rng.randbytes(rng.randint(1, 4))
    return bytes(out)


@given(stream=streams(max_size=30), seed=seeds)
def test_functions_are_bijections(stream: tuple[int, list[int]], seed: int) -> None:
    bits, words = stream
    operand = 1 + seed % (2**bits - 1)
    functions: list[Function] = [Xor(operand), Add(operand), ZigZag(), Gray(), BitReverse()]
    if bits > 1:
        functions.append(RotR(1 + seed % (bits - 1)))
    for function in functions:
        check(Map(function, Const(0)), bits, 1)
        for word in [0, 2**bits - 1, *words]:
            assert apply(function, bits, invert(function, bits, word)) == word
            assert invert(function, bits, apply(function, bits, word)) == word
            assert 0 <= apply(function, bits, word) < 1 << bits


@given(streams())
def test_flat_and_sliced_forms_round_trip(stream: tuple[int, list[int]]) -> None:
    bits, words = stream
    flat, arrays = flatten(words, bits), sliced(words, bits)
    assert len(flat) == -(-len(words) * bits // 8)
    assert unflatten(flat, bits)[: len(words)] == words
    assert int.from_bytes(flat, "little") == sum(word << (bits * i) for i, word in enumerate(words))
    assert len(arrays) == sliced_size(len(words), bits)
    assert unsliced(arrays, len(words), bits) == words


@given(streams(max_size=200), seeds)
@settings(max_examples=300, deadline=None)
def test_a_literal_keeps_any_words_it_takes(stream: tuple[int, list[int]], seed: int) -> None:
    bits, words = stream
    encoding = random_encoding(random.Random(seed), bits)
    try:
        decoded = there_and_back(Lit(encoding), bits, words)
    except NotApplicable:
        match encoding:
            case Pack(packed, base):
                assert any((word - base) % 2**bits >> packed for word in words)
            case Huffman(_, max_length):
                assert len(set(words)) > 1 << max_length
            case _:
                raise
    else:
        assert decoded == words


def there_and_back(node: Node, bits: int, words: list[int]) -> list[int]:
    """G(D(words)) in blocks of 64."""
    count = len(words)
    shared = build_shared(node, bits, count, 64, words) if count else b""
    decoded: list[int] = []
    for at in range(0, count, 64):
        payload = encode_block(node, bits, count, 64, at // 64, shared, words[at : at + 64])
        decoded += decode_block(node, bits, count, 64, at // 64, shared, payload)
    return decoded


@given(streams(max_size=200), seeds)
@settings(max_examples=300, deadline=None)
def test_operators_that_apply_to_everything(stream: tuple[int, list[int]], seed: int) -> None:
    bits, words = stream
    rng, raw = random.Random(seed), Lit(Raw())
    if len(words) < 2:
        return
    parts = rng.randint(2, min(len(words), 6))
    nodes: list[Node] = [
        Map(random_function(rng, bits), raw),
        Scan("xor", raw),
        Scan("add", raw),
        Concat(composition(rng, len(words), parts), (raw,) * parts),
        Select(rng.choice(words), raw, raw),
    ]
    if bits > 1:
        fields = rng.randint(2, min(bits, 6))
        nodes += [Merge(composition(rng, bits, fields), (raw,) * fields), Merge((1,) * bits, (raw,) * bits)]
    for node in nodes:
        check(node, bits, len(words))
        assert there_and_back(node, bits, words) == words


@given(streams(max_size=50), st.integers(2, 9), seeds)
def test_repeat_takes_only_what_repeats(stream: tuple[int, list[int]], times: int, seed: int) -> None:
    bits, period = stream
    if not period:
        return
    words = period * times
    node = Repeat(times, Lit(Raw()))
    assert there_and_back(node, bits, words) == words
    shared = build_shared(node, bits, len(words), 512, words)
    assert encode_block(node, bits, len(words), 512, 0, shared, words) == b""
    other = one_bit_flipped(words, bits, seed)
    with pytest.raises(NotApplicable):
        build_shared(node, bits, len(words), 512, other)
    with pytest.raises(NotApplicable):
        encode_block(node, bits, len(words), 512, 0, shared, other)


@given(widths, st.integers(1, 100), seeds)
def test_const_takes_only_its_word(bits: int, count: int, seed: int) -> None:
    word = seed % 2**bits
    words = [word] * count
    assert there_and_back(Const(word), bits, words) == words
    with pytest.raises(NotApplicable):
        there_and_back(Const(word), bits, one_bit_flipped(words, bits, seed))


@given(streams(max_size=100), seeds)
def test_palette_takes_only_its_words(stream: tuple[int, list[int]], seed: int) -> None:
    bits, words = stream
    table = sorted(set(words))
    if len(table) < 2:
        return
    assert there_and_back(Palette(tuple(table), Lit(Raw())), bits, words) == words
    other = one_bit_flipped(words, bits, seed)
    if not set(other) <= set(table):
        with pytest.raises(NotApplicable):
            there_and_back(Palette(tuple(table), Lit(Raw())), bits, other)


def one_bit_flipped(words: list[int], bits: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    other = list(words)
    other[rng.randrange(len(words))] ^= 1 << rng.randrange(bits)
    return other
