#include "driver/worker/profile_arrays.h"

#include <cstdio>
#include <set>

#include "runtime/model/fuse.h"

namespace millrace {

Result<std::vector<LayeredModel>> arrays_to_measure(const ProfileFlags& flags, const LayeredModel& model) {
  std::vector<LayeredModel> arrays;
  for (const int jobs : std::set<int>(flags.jobs.begin(), flags.jobs.end())) {
    if (jobs == 1) continue;
    // Kernels are chosen by shapes, and those of another size are other shapes: each has choices of its own.
    Result<LayeredModel> array = fuse(std::vector(static_cast<std::size_t>(jobs), model),
                                      std::make_shared<KernelChoices>(flags.kernels, choosing_clock()));
    if (!array) {
      Problems problems = array.problems();
      for (Problem& problem : problems)
        if (problem.where == "--fused") problem.where = "--jobs";
      return problems;
    }
    arrays.push_back(*std::move(array));
  }
  return arrays;
}

void print_arrays(const LayerGraph& profile) {
  if (profile.arrays.empty()) return;
  std::printf("%-6s %12s %12s %10s %12s %10s %15s %15s\n", "jobs", "forward ms", "backward ms", "loss ms",
              "update ms", "a job ms", "parameters MiB", "saved MiB");
  std::vector<const LayerGraph*> all{&profile};
  for (const LayerGraph& array : profile.arrays) all.push_back(&array);
  for (const LayerGraph* one : all) {
    double forward = 0, backward = 0;
    Bytes parameters = 0, saved = 0;
    for (const LayerNode& node : one->nodes) {
      forward += node.forward_s;
      backward += node.backward_s();
      parameters += node.parameter_bytes;
      saved += node.saved_bytes;
    }
    std::printf("%-6d %12.3f %12.3f %10.3f %12.3f %10.3f %15.3f %15.3f\n", one->jobs, forward * 1e3,
                backward * 1e3, one->loss_s * 1e3,
                one->update_s_per_byte * static_cast<double>(parameters) * 1e3,
                (forward + backward + one->loss_s) * 1e3 / one->jobs, static_cast<double>(parameters) / kMiB,
                static_cast<double>(saved) / kMiB);
  }
}

}  // namespace millrace
