#include "runtime/layers/seeded_draws.h"

#include <ATen/Context.h>

namespace millrace {
namespace {

std::mutex& generator_mutex() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

SeededDraws::SeededDraws(at::Device device, std::uint64_t seed)
    : lock_(generator_mutex()), generator_(at::globalContext().defaultGenerator(device)) {
  const std::lock_guard inner(generator_.mutex());
  before_ = generator_.get_state();
  generator_.set_current_seed(seed);
}

SeededDraws::~SeededDraws() {
  const std::lock_guard inner(generator_.mutex());
  generator_.set_state(before_);
}

}  // namespace millrace
