// Every layer as B jobs of an array against B plain layers: outputs, gradients, running statistics. Bit for
// bit in loop mode, within rounding of the kernels over all jobs; and no job's NaN reaches another.
#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "runtime/base/clock.h"
#include "runtime/layers/initialise.h"
#include "runtime/layers/job_array.h"
#include "tests/layers/layer_cases.h"

namespace millrace {
namespace {

at::Tensor random(const Shape& shape, std::uint64_t seed, at::ScalarType dtype) {
  return at::empty(shape, dtype).normal_(0, 2, at::detail::createCPUGenerator(seed));
}

enum class Inputs { Own, Shared };

/// The tensors of B jobs: parameters in equal distances in one storage, as a stage has them.
struct Jobs {
  std::vector<at::Tensor> inputs, parameters, buffers, grads, sums;  // job by job
  std::vector<char> needs;
  std::vector<std::uint64_t> seeds;
  std::size_t read = 0, trained = 0, kept = 0;  // numbers of one job
};

Jobs jobs_of(const LayerCase& c, int count, Inputs shared, at::ScalarType dtype) {
  Jobs jobs;
  const auto specs = c.layer->parameters();
  std::int64_t elements = 0;
  for (const ParameterSpec& spec : specs) {
    if (spec.is_buffer) continue;
    std::int64_t own = 1;
    for (std::int64_t d : spec.shape) own *= d;
    elements += (own + 63) / 64 * 64;
  }
  const at::Tensor weights = at::zeros({count * elements}, dtype),
                   sums = at::zeros({count * elements}, dtype);
  jobs.read = c.inputs.size();
  for (int b = 0; b < count; ++b) {
    const auto job = static_cast<std::uint64_t>(b);
    jobs.seeds.push_back(77 + job);
    for (std::size_t i = 0; i < c.inputs.size(); ++i) {
      const std::int64_t limit = i < c.limits.size() ? c.limits[i] : 0;
      if (b > 0 && shared == Inputs::Shared) {
        jobs.inputs.push_back(jobs.inputs[i]);
      } else if (limit > 0) {
        jobs.inputs.push_back(at::empty(c.inputs[i], at::kLong)
                                  .random_(0, limit, at::detail::createCPUGenerator(10 + i + 100 * job)));
      } else {
        jobs.inputs.push_back(random(c.inputs[i], 10 + i + 100 * job, dtype));
      }
      jobs.needs.push_back(limit == 0 && shared == Inputs::Own);
    }
    const auto values = initialise(specs, 1 + job, c.name);
    std::int64_t at = b * elements;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      if (specs[i].is_buffer) {
        jobs.buffers.push_back(specs[i].is_counter ? values[i].clone() : values[i].to(dtype).clone());
        continue;
      }
      const std::int64_t own = values[i].numel();
      jobs.parameters.push_back(weights.narrow(0, at, own).view(values[i].sizes()));
      // Norms begin alike; what differs shows whose they are.
      jobs.parameters.back().copy_(values[i]).add_(random(specs[i].shape, 500 + i + 100 * job, dtype), 0.1);
      jobs.sums.push_back(sums.narrow(0, at, own).view(values[i].sizes()));
      at += (own + 63) / 64 * 64;
    }
    jobs.grads.push_back(random(c.layer->output_shape(c.inputs), 900 + job, dtype));
  }
  jobs.trained = jobs.parameters.size() / static_cast<std::size_t>(count);
  jobs.kept = jobs.buffers.size() / static_cast<std::size_t>(count);
  return jobs;
}

struct Found {
  std::vector<at::Tensor> outputs, inputs, sums, buffers;
};

std::span<const bool> bools(const std::vector<char>& flags) {
  return {reinterpret_cast<const bool*>(flags.data()), flags.size()};
}

Found run_alone(const LayerCase& c, Jobs t, int count) {
  Found found;
  for (int b = 0; b < count; ++b) {
    const auto job = static_cast<std::size_t>(b);
    const auto part = [&](auto& all, std::size_t size) { return std::span(all).subspan(job * size, size); };
    const CallContext context{.random_seed = t.seeds[job]};
    Saved saved;
    found.outputs.push_back(c.layer->forward(part(t.inputs, t.read), part(t.parameters, t.trained),
                                             part(t.buffers, t.kept), context, &saved));
    auto inputs = c.layer->backward_input(t.grads[job], part(t.parameters, t.trained), saved,
                                          bools(t.needs).subspan(job * t.read, t.read));
    inputs.resize(t.read);
    found.inputs.insert(found.inputs.end(), inputs.begin(), inputs.end());
    c.layer->backward_weight(t.grads[job], saved, part(t.sums, t.trained));
  }
  for (const at::Tensor& sum : t.sums) found.sums.push_back(sum.clone());
  found.buffers = t.buffers;
  return found;
}

/// All jobs' as one, as a kernel over jobs leaves what one layer reads.
void bring_together(std::vector<at::Tensor>& all, std::size_t per_job) {
  for (std::size_t i = 0; i < per_job; ++i) {
    std::vector<at::Tensor> of_jobs;
    for (std::size_t at = i; at < all.size(); at += per_job) of_jobs.push_back(std::move(all[at]));
    all[i] = stacked(of_jobs);
  }
}
void take_apart(std::vector<at::Tensor>& all, std::size_t per_job) {
  std::vector<at::Tensor> room;
  const auto apart = JobTensors(all, per_job).apart(room);
  all = {apart.begin(), apart.end()};
}

enum class Edges { Apart, Together };

Found run_array(const LayerCase& c, Jobs t, int count, ArrayKernels mode, Edges edges = Edges::Apart) {
  static SteadyClock clock;
  const LayerPtr array = job_layer(c.name, std::vector<LayerPtr>(count, c.layer),
                                   std::make_shared<KernelChoices>(mode, clock), true);
  const auto& multi = dynamic_cast<const MultiLayer&>(*array);
  CallContext context{.random_seed = t.seeds.front()};
  if (count > 1) context.job_seeds = t.seeds;
  const std::vector<char> together{1};
  if (edges == Edges::Together) {
    context.together = together;
    bring_together(t.inputs, t.read);
    bring_together(t.grads, 1);
  }
  Saved saved;
  Found found{.outputs = multi.forward_all(t.inputs, t.parameters, t.buffers, context, &saved)};
  found.inputs = multi.backward_input_all(t.grads, t.parameters, saved, bools(t.needs));
  multi.backward_weight_all(t.grads, saved, t.sums);
  take_apart(found.outputs, 1);
  take_apart(found.inputs, t.read);
  for (const at::Tensor& sum : t.sums) found.sums.push_back(sum.clone());
  found.buffers = t.buffers;
  return found;
}

class JobLayers : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }
  at::NoGradGuard no_grad_;
};

using Same = std::function<bool(const at::Tensor&, const at::Tensor&)>;

void expect_same(const Found& alone, const Found& array, const Same& same, const std::string& what) {
  const auto compare = [&](const auto& a, const auto& b, const char* which) {
    ASSERT_EQ(a.size(), b.size()) << what << ": " << which;
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (!a[i].defined() && !b[i].defined()) continue;
      ASSERT_TRUE(a[i].defined() && b[i].defined()) << what << ": " << which << " " << i;
      ASSERT_EQ(a[i].sizes(), b[i].sizes()) << what << ": " << which << " " << i;
      EXPECT_TRUE(same(a[i], b[i])) << what << ": " << which << " " << i;
    }
  };
  compare(alone.outputs, array.outputs, "outputs");
  compare(alone.inputs, array.inputs, "gradients of inputs");
  compare(alone.sums, array.sums, "gradients of parameters");
  compare(alone.buffers, array.buffers, "buffers");
}

bool bitwise(const at::Tensor& a, const at::Tensor& b) {
  return at::equal(a, b);
}

TEST_F(JobLayers, AreTheJobsOwnBitsInLoopMode) {
  for (const LayerCase& c : layer_cases()) {
    for (int count : {1, 2, 3, 8}) {
      const auto make = [&] { return jobs_of(c, count, Inputs::Own, at::kFloat); };
      expect_same(run_alone(c, make(), count), run_array(c, make(), count, ArrayKernels::Loop), bitwise,
                  std::string(c.name) + " of " + std::to_string(count));
    }
  }
}

TEST_F(JobLayers, AreTheJobsOwnNumbersInOneKernel) {
  for (const LayerCase& c : layer_cases()) {
    for (int count : {1, 2, 3, 8}) {
      for (const Inputs inputs : {Inputs::Own, Inputs::Shared}) {
        for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
          const auto make = [&] { return jobs_of(c, count, inputs, dtype); };
          // Sums of some hundred terms of order one, in another order.
          const double error = dtype == at::kDouble ? 1e-12 : 2e-4;
          expect_same(
              run_alone(c, make(), count), run_array(c, make(), count, ArrayKernels::Fused),
              [&](const at::Tensor& a, const at::Tensor& b) { return at::allclose(b, a, error, error); },
              std::string(c.name) + " of " + std::to_string(count) +
                  (inputs == Inputs::Shared ? " that share inputs" : ""));
        }
      }
    }
  }
}

TEST_F(JobLayers, GiveTheSameWhereJobsComeTogether) {
  for (const LayerCase& c : layer_cases()) {
    for (int count : {2, 3}) {
      for (const ArrayKernels mode : {ArrayKernels::Loop, ArrayKernels::Fused}) {
        const auto make = [&] { return jobs_of(c, count, Inputs::Own, at::kFloat); };
        expect_same(run_array(c, make(), count, mode), run_array(c, make(), count, mode, Edges::Together),
                    bitwise, std::string(c.name) + " of " + std::to_string(count) + " " + to_string(mode));
      }
    }
  }
}

TEST_F(JobLayers, NoNumberOfAJobReachesAnother) {
  for (const LayerCase& c : layer_cases()) {
    for (const ArrayKernels mode : {ArrayKernels::Loop, ArrayKernels::Fused}) {
      for (const double poison : {std::nan(""), HUGE_VAL}) {
        Jobs clean = jobs_of(c, 3, Inputs::Own, at::kFloat), sick = jobs_of(c, 3, Inputs::Own, at::kFloat);
        for (std::size_t i = 0; i < sick.read; ++i) {
          if (at::Tensor& input = sick.inputs[sick.read + i]; input.is_floating_point()) input.fill_(poison);
        }
        for (std::size_t i = 0; i < sick.trained; ++i) sick.parameters[sick.trained + i].fill_(poison);
        sick.grads[1].fill_(poison);
        Found a = run_array(c, std::move(clean), 3, mode), b = run_array(c, std::move(sick), 3, mode);
        for (Found* found : {&a, &b}) {  // jobs 0 and 2
          for (auto* list : {&found->outputs, &found->inputs, &found->sums, &found->buffers}) {
            const auto third = static_cast<std::ptrdiff_t>(list->size() / 3);
            list->erase(list->begin() + third, list->begin() + 2 * third);
          }
        }
        expect_same(a, b, bitwise, std::string(c.name) + " " + to_string(mode));
      }
    }
  }
}

TEST_F(JobLayers, ChooseByTimeAndKeepToIt) {
  SteadyClock clock;
  const auto choices = std::make_shared<KernelChoices>(ArrayKernels::Auto, clock);
  const LayerCase c{"linear", linear(7, 5), {{3, 7}}};
  const LayerPtr array = job_layer(c.name, std::vector<LayerPtr>(8, c.layer), choices, true);
  const auto& multi = dynamic_cast<const MultiLayer&>(*array);
  for (int i = 0; i < 3; ++i) {
    Jobs t = jobs_of(c, 8, Inputs::Own, at::kFloat);
    CallContext context;
    context.job_seeds = t.seeds;
    Saved saved;
    multi.forward_all(t.inputs, t.parameters, t.buffers, context, &saved);
  }
  ASSERT_EQ(choices->all().size(), 1u) << "measured once for a shape";
  const KernelChoice choice = choices->all().front();
  EXPECT_GT(choice.loop_s, 0);
  EXPECT_GT(choice.fused_s, 0);
  EXPECT_EQ(choice.inputs, "[3, 7]");
}

TEST(Stacked, IsAViewWhereDistancesAreEqual) {
  const at::Tensor whole = at::zeros({4, 3, 5});
  std::vector<at::Tensor> parts;
  append_unstacked(whole.transpose(0, 1), parts);
  ASSERT_EQ(parts.size(), 3u);
  const at::Tensor again = stacked(parts);
  EXPECT_EQ(again.data_ptr(), whole.data_ptr());
  EXPECT_EQ(again.sizes(), (Shape{3, 4, 5}));
  EXPECT_EQ(again.strides(), (Shape{5, 15, 1}));
  EXPECT_EQ(stacked(std::vector{parts[0], parts[0]}).strides(), (Shape{0, 15, 1})) << "one for all";
  const std::vector uneven{parts[0], parts[1], parts[0]};
  EXPECT_NE(stacked(uneven).data_ptr(), whole.data_ptr());
  EXPECT_EQ(stacked(uneven).sizes(), (Shape{3, 4, 5}));
}

}  // namespace
}  // namespace millrace
