#include "runtime/stage/gradient_agreement.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/tensor.h>

#include "runtime/base/check.h"
#include "runtime/stage/flat_blocks.h"

namespace millrace {

double clip_factor(double norm, double limit, bool exact) {
  if (exact) return norm > limit ? limit / norm : 1;
  return std::min(1.0, limit / (norm + 1e-6));
}

double norm_of(const std::vector<double>& square_sums) {
  double sum = 0;
  for (double part : square_sums) sum += part;
  return std::sqrt(sum);
}

GradientAgreement::GradientAgreement(Communicator& world, const StageLayout& layout) {
  for (const NamedLayer& layer : layout.model.layers) {
    for (const ParameterSpec& spec : layer.layer->parameters()) {
      const bool tied = std::ranges::find(layer.tied, spec.name,
                                          &std::pair<std::string, std::string>::first) != layer.tied.end();
      if (!spec.is_buffer && !tied) names_.push_back(layer.name + "." + spec.name);
    }
  }
  if (world.size() == 1) return;
  std::vector<RankId> all;
  for (int r = 0; r < world.size(); ++r) all.emplace_back(r);
  group_ = world.subgroup(all, "gradient norm");
}

double GradientAgreement::norm(const std::vector<Part>& parts) {
  std::vector<double> sums(names_.size(), 0.0);
  for (const Part& part : parts) {
    if (!part.speaks) continue;
    const std::vector<double> own = square_sums_by_slot(*part.store, part.store->flat_gradient());
    for (std::size_t s = 0; s < own.size(); ++s) {
      const auto name = std::ranges::find(names_, part.store->slots()[s].name);
      MILLRACE_CHECK(name != names_.end(), part.store->slots()[s].name << " is not in the model");
      sums[static_cast<std::size_t>(name - names_.begin())] = own[s];
    }
  }
  if (group_ && !sums.empty()) {
    at::Tensor all = at::tensor(sums, at::kDouble);
    group_->all_reduce(all, "norm of the gradient")->wait();  // others have zeros where this rank has sums
    std::copy_n(all.const_data_ptr<double>(), sums.size(), sums.begin());
  }
  return norm_of(sums);
}

}  // namespace millrace
