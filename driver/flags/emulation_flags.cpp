#include "driver/flags/emulation_flags.h"

#include <algorithm>

#include "data/files/storage_names.h"
#include "runtime/base/text.h"

namespace millrace {

Result<EmulatedJitter> jitter_from(const std::string& text) {
  if (text == "none") return EmulatedJitter{};
  if (text == "profile") return EmulatedJitter{.of_profile = true};
  const Result<double> sigma = number_from(text, 0, 10);
  if (!sigma)
    return Problem{"", "'" + text + "' is no jitter", "none, profile, or a sigma from 0 to 10, as 0.05"};
  return EmulatedJitter{.sigma = *sigma};
}

Result<std::vector<Straggler>> stragglers_from(const std::string& text) {
  constexpr double kMostSlowdown = 1e6;
  std::vector<Straggler> stragglers;
  for (const std::string& item : split(text, ',')) {
    const std::size_t colon = std::min(item.find(':'), item.size());
    const Result<std::int64_t> rank = integer_from(item.substr(0, colon), 0, INT32_MAX);
    const Result<double> factor =
        number_from(item.substr(std::min(colon + 1, item.size())), 0, kMostSlowdown);
    if (!rank || !factor || *factor == 0)
      return Problem{"", "'" + item + "' is not RANK:FACTOR", "for example 3:1.5, or 0:2,3:1.5"};
    stragglers.push_back({static_cast<int>(*rank), *factor});
  }
  return stragglers;
}

Result<EmulatedStragglers> emulated_stragglers_from(const std::string& text) {
  if (text == "profile") return EmulatedStragglers{.of_profile = true};
  Result<std::vector<Straggler>> of_ranks = stragglers_from(text);
  if (!of_ranks) {
    Problem problem = of_ranks.problems().front();
    problem.hint += ", or profile";
    return problem;
  }
  return EmulatedStragglers{.of_ranks = *std::move(of_ranks)};
}

Status check(const Straggler& straggler, int ranks) {
  if (straggler.rank < ranks) return Ok{};
  return Problem{"--straggler", "there is no rank " + std::to_string(straggler.rank),
                 "ranks are 0 to " + std::to_string(ranks - 1)};
}

std::vector<Flag> emulation_flags(EmulationFlags& emulation, StorageFlags& storage) {
  return deciding(
      Decides::Nothing,
      {flag("Emulation", "emulate-links", "FILE",
            "cluster.yaml: messages take as long as its links say, whatever joins the ranks; the weights are "
            "the same.",
            into::text(emulation.links)),
       flag("Emulation", "device-profile", "FILE",
            "Of --device emulated: the profile whose times its layers take, as `millrace profile` writes it.",
            into::text(emulation.profile)),
       flag("Emulation", "clock", "NAME",
            "Of --device emulated. wall: a step takes as long as on the devices. virtual: time jumps from "
            "event "
            "to event, ranks are threads of one process, and data takes no time.",
            into::choice(emulation.clock, "clock")),
       flag("Emulation", "payload", "NAME",
            "Of --device emulated. none: messages carry a time stamp alone, so that only --emulate-links "
            "makes "
            "them take time. bytes: they have the real number of bytes.",
            into::choice(emulation.payload, "payload")),
       flag(
           "Emulation", "emulated-devices", "N",
           "Of --device emulated: the ranks share N devices, and rank r uses device r modulo N. 0: each rank "
           "has a device of its own. With --clock wall it needs --share-devices.",
           into::integer(emulation.devices, 0, 1 << 20)),
       flag("Emulation", "share-devices", "DIR",
            "Of --device emulated, with --clock wall: jobs of this host that name the same folder use the "
            "same "
            "devices, by rank. A device works 3 ms for each of them in turn.",
            into::text(emulation.share)),
       flag("Emulation", "storage", "NAME|LATENCY,BANDWIDTH[,DEPTH]",
            "Training samples come as late as from this storage. Each rank that reads has one of its own. "
            "Presets: " +
                storage_presets() + ".",
            {.read = [&storage](const std::vector<std::string>& words) -> std::optional<Problem> {
              const Result<StorageSpec> read = modelled_storage_from(words.back());
              if (!read) return read.problems().front();
              storage.storage = *read;
              return std::nullopt;
            }}),
       flag("Emulation", "storage-cache", "F",
            "With --storage: a cache that holds this share of the data's bytes. It is as full as after "
            "epochs.",
            into::number(storage.cache, 0, 1)),
       flag("Emulation", "storage-policy", "none|random|lru|fifo|minio",
            "With --storage: what the cache keeps.", into::choice(storage.policy, "policy")),
       flag("Emulation", "jitter", "none|profile|SIGMA",
            "Of --device emulated: each piece of work takes a time that is drawn (--seed). profile: as much "
            "as "
            "the passes of the profile differed. SIGMA: a log-normal factor of mean 1.",
            into::parsed(emulation.jitter, jitter_from, "none")),
       flag(
           "Emulation", "straggler", "profile|RANK:FACTOR,...",
           "Of --device emulated: the work of this rank takes FACTOR times as long. profile: ranks differ as "
           "they did in the profile, which was measured with as many.",
           into::parsed(emulation.stragglers, emulated_stragglers_from, ""))});
}

}  // namespace millrace
