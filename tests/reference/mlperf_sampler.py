"""MLPerf v0.6's sampler of sentences for GNMT, written down from its description with Python's own Mersenne
Twister: the twin of length_bucket_order. mlperf_sampler.py SIZE BUCKETS LONGEST PER_STEP SEED prints the order
of an epoch for the lengths (7 i^2 + 3 i) mod 47 + 3, without what is left out."""
import json
import random
import sys


def torch_generator(seed):
    """torch.Generator().manual_seed(seed), seed below 2^32: MT19937 by init_genrand."""
    state = [seed]
    for i in range(1, 624):
        state.append((1812433253 * (state[-1] ^ (state[-1] >> 30)) + i) & 0xFFFFFFFF)
    generator = random.Random()
    generator.setstate((3, tuple(state) + (624,), None))
    return generator


def randperm(n, generator):
    order = list(range(n))
    for i in range(n - 1):
        j = i + generator.getrandbits(32) % (n - i)
        order[i], order[j] = order[j], order[i]
    return order


def epoch_order(lengths, buckets, longest, per_step, seed):
    generator = torch_generator(seed)
    width = (longest + buckets - 1) // buckets
    steps = []
    for bucket in range(buckets):
        members = [i for i, length in enumerate(lengths) if min(length // width, buckets - 1) == bucket]
        shuffled = [members[i] for i in randperm(len(members), generator)]
        steps += [shuffled[at:at + per_step] for at in range(0, len(shuffled) - per_step + 1, per_step)]
    return [i for step in randperm(len(steps), generator) for i in steps[step]]


if __name__ == "__main__":
    size, buckets, longest, per_step, seed = map(int, sys.argv[1:])
    print(json.dumps(epoch_order([(7 * i * i + 3 * i) % 47 + 3 for i in range(size)], buckets, longest, per_step, seed)))
