// The flags of `millrace simulate` that say what is simulated.
#include "driver/simulate/simulate_subject.h"
#include "runtime/plan/limits.h"

namespace millrace {

std::vector<Flag> simulation_subject_flags(SimulateFlags& f) {
  SimulationOptions& o = f.options;
  const char* const shape = kShapeFlags;
  const char* const conditions = "Conditions";
  const char* const plan = "A plan";
  return {
      flag(shape, "stages", "N", "Number of stages (places, with --chunks).",
           into::integers(f.stages, 1, kMostJobRanks)),
      flag(shape, "replicas", "LIST", "Ranks of each stage, e.g. 2,1 (with chunks: one number).",
           into::integers(f.replicas, 1, kMostJobRanks)),
      flag(shape, "chunks", "V",
           "Stages that each rank holds: interleaved (default 2), zb-h1 and auto-order (default 1); the "
           "V schedules and dualpipev have 2.",
           into::integer(f.chunks, 1, 1024)),
      flag(shape, "placement", "loop|v",
           "Of auto-order's stages: s on place s mod p, or along a V (chunks 2).",
           into::choice(f.placement, "placement")),
      flag(shape, "arrays", "N",
           "Independent trainings of --microbatches each, which go through the pipeline one after the other.",
           into::integer(f.arrays, 1, kMostSimulatedArrays)),
      flag(shape, "update-every", "N",
           "Microbatches of each update of pipedream-2bw (default: the fewest it can).",
           into::integer(f.update_every, 1, kMostSimulatedMicrobatches)),
      flag(shape, "forward", "LIST",
           "Seconds of a forward: of a rank's layers (its chunks share it), or one for each stage.",
           into::numbers(f.costs.forward)),
      flag(shape, "backward", "LIST", "Seconds of a backward, likewise: half input, half weight gradient.",
           into::numbers(f.backward)),
      flag(shape, "backward-input", "LIST", "Seconds of the input gradient.",
           into::numbers(f.costs.backward_input)),
      flag(shape, "backward-weight", "LIST", "Seconds of the weight gradient.",
           into::numbers(f.costs.backward_weight)),
      flag(shape, "reduce", "LIST", "Seconds of a replicated stage's all-reduce.",
           into::numbers(f.costs.reduce)),
      flag(shape, "update", "LIST", "Seconds of the update.", into::numbers(f.costs.update)),
      flag(shape, "transfer", "LIST",
           "Seconds that a message occupies its wire: one value, or one for each link.",
           into::numbers(f.costs.transfer)),
      flag(shape, "activation-bytes", "LIST", "Bytes of a message, one way.", into::numbers(o.bytes)),
      flag(shape, "bandwidth", "LIST", "Bytes/s: adds activation-bytes / bandwidth to --transfer.",
           into::numbers(o.bandwidth)),
      flag(shape, "latency", "LIST", "Seconds from leaving a wire to arriving.", into::numbers(o.latency)),
      flag(shape, "stash-bytes", "LIST", "Bytes kept for a microbatch until its backward.",
           into::numbers(f.stash_bytes)),
      flag(shape, "weight-bytes", "LIST", "Bytes of one version of the weights.",
           into::numbers(f.weight_bytes)),
      flag(conditions, "sends", "MODE",
           "overlap: beside the computation; block: the sender waits until the message has left; "
           "rendezvous: both ends wait for each other.",
           into::choice(f.sends, "mode")),
      flag(conditions, "ranks-per-host", "N",
           "N ranks share a port for each direction to other hosts; 0: the hosts of --cluster, else "
           "every pair has its own wire.",
           into::integer(f.ranks_per_host, 0, kMostJobRanks)),
      flag(conditions, "reduce-buckets", "N",
           "Buckets of a gradient, reduced during the last backward; 1: after it.",
           into::integer(o.reduce_buckets, 1, 1 << 20)),
      flag(conditions, "jitter", "SIGMA", "Log-normal noise (mean 1) on each computation and transfer.",
           into::number(o.jitter, 0, 10)),
      flag(conditions, "seed", "N", "Seed of the noise.", into::integer(o.seed, 0)),
      {.name = "straggler",
       .value = "RANK:FACTOR",
       .help = "This rank computes FACTOR times as long.",
       .group = conditions,
       .repeatable = true,
       .target = into::texts(f.stragglers)},
      flag(plan, "plan", "FILE", "plan.json to simulate.", into::text(f.plan)),
      flag(plan, "profile", "FILE",
           "profile.json or graph.txt for costs and memory (default: the plan's predictions).",
           into::text(f.profile)),
      flag(plan, "cluster", "FILE", "cluster.yaml for the links (default: this host).",
           into::text(f.cluster)),
  };
}

}  // namespace millrace
