// Small integer identities as distinct types: swapping a stage and a rank does not compile.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace millrace {

/// An integer identity. `-1` (the default) means "none". Value type; no invariant.
template <class Tag, class Int = int>
struct Id {
  Int value = -1;

  constexpr Id() = default;
  constexpr explicit Id(Int v) : value(v) {}
  constexpr auto operator<=>(const Id&) const = default;
  constexpr bool is_valid() const { return value >= 0; }
};

using StageId = Id<struct StageTag>;  ///< position in the pipeline, 0 first
using RankId = Id<struct RankTag>;    ///< process (or thread) of the job
/// Numbered within a step (flushing schedules) or within the run (asynchronous ones).
using MicrobatchId = Id<struct MicrobatchTag, std::int64_t>;
using LayerId = Id<struct LayerTag>;                    ///< index into a model's layer list
using VersionId = Id<struct VersionTag, std::int64_t>;  ///< weight version: number of updates so far

}  // namespace millrace

template <class Tag, class Int>
struct std::hash<millrace::Id<Tag, Int>> {
  std::size_t operator()(const millrace::Id<Tag, Int>& id) const noexcept {
    return std::hash<Int>{}(id.value);
  }
};
