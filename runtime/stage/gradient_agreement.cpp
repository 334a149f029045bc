#include "runtime/stage/gradient_agreement.h"

#include <algorithm>
#include <cmath>
#include <limits>

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

namespace {
std::vector<double> norms_of_jobs(const std::vector<double>& square_sums, int jobs) {
  std::vector<double> norms;
  const auto per_job = static_cast<std::ptrdiff_t>(square_sums.size()) / jobs;
  for (auto from = square_sums.begin(); std::ssize(norms) < jobs; from += per_job)
    norms.push_back(norm_of({from, from + per_job}));
  return norms;
}
}  // namespace

std::vector<double> norms_by_job(const ParameterStore& store) {
  return norms_of_jobs(square_sums_by_slot(store, store.flat_gradient()), store.jobs());
}

GradientAgreement::GradientAgreement(Communicator& world, const StageLayout& layout, int model)
    : jobs_(layout.model.jobs()) {
  std::vector<std::vector<std::string>> of_jobs(jobs_);
  for (const NamedLayer& layer : layout.model.layers) {
    for (const ParameterSpec& spec : layer.layer->parameters()) {
      if (!spec.is_buffer && !layer.is_tied(spec))
        of_jobs[std::max(spec.job, 0)].push_back(layer.parameter_name(spec));
    }
  }
  for (const auto& names : of_jobs) {
    for (const std::string& name : names) places_.emplace(name, places_.size());
  }
  if (world.size() == 1) return;
  std::vector<RankId> all;
  for (int r = 0; r < world.size(); ++r) all.emplace_back(r);
  group_ = world.subgroup(all, "gradient norm" + (model > 0 ? std::to_string(model) : ""));
}

std::vector<double> GradientAgreement::norms(const std::vector<Part>& parts,
                                             const std::vector<char>& troubled) {
  std::vector<double> sums(places_.size(), 0.0);
  for (const Part& part : parts) {
    if (!part.speaks) continue;
    const std::vector<double> own = square_sums_by_slot(*part.store, part.store->flat_gradient());
    for (std::size_t s = 0; s < own.size(); ++s) {
      const auto place = places_.find(part.store->slots()[s].name);
      MILLRACE_CHECK(place != places_.end(), part.store->slots()[s].name << " is not in the model");
      sums[place->second] = own[s];
    }
  }
  sums.insert(sums.end(), troubled.begin(), troubled.end());
  if (group_ && !sums.empty()) {
    at::Tensor all = at::tensor(sums, at::kDouble);
    // The sum is exact: the other ranks have zeros where this rank contributes.
    group_->all_reduce(all, "norm of the gradient")->wait();
    std::copy_n(all.const_data_ptr<double>(), sums.size(), sums.begin());
  }
  const std::vector<double> troubles(sums.begin() + static_cast<std::ptrdiff_t>(places_.size()), sums.end());
  sums.resize(places_.size());
  std::vector<double> norms = norms_of_jobs(sums, jobs_);
  for (std::size_t job = 0; job < troubles.size(); ++job)
    if (troubles[job] > 0) norms[job] = std::numeric_limits<double>::quiet_NaN();
  return norms;
}

}  // namespace millrace
