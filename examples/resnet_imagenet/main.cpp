// ResNet on a folder of images (train/CLASS/*.jpg, val/CLASS/*.jpg): profiled here, planned for this machine,
// trained in one process, evaluated.
//   resnet_imagenet FOLDER [MODEL [PIXELS [RANKS [STEPS]]]]
#include <millrace/millrace.h>

#include <cstdio>
#include <cstdlib>

namespace {

using namespace millrace;

template <class T>
T or_throw(Result<T> result) {
  if (!result) throw ConfigError(to_string(result.problems()));
  return *std::move(result);
}

int run(int argc, char** argv) {
  if (argc < 2)
    return std::fprintf(stderr, "usage: resnet_imagenet FOLDER [MODEL [PIXELS [RANKS [STEPS]]]]\n"), 2;
  const auto word = [&](int i, const char* fallback) { return std::string(argc > i ? argv[i] : fallback); };
  const std::string folder = argv[1], pixels = word(3, "224");
  const int ranks = std::atoi(word(4, "2").c_str()), microbatch = 8, microbatches = 4;

  // The model gets as many classes as the folder has.
  const LayeredModel any = or_throw(make_model(word(2, "resnet50"), {{"image-size", pixels}}));
  const int classes =
      or_throw(make_dataset(DatasetOptions{.path = folder, .fields = any.fields}))->num_classes();
  const LayeredModel model = or_throw(
      make_model(word(2, "resnet50"), {{"image-size", pixels}, {"classes", std::to_string(classes)}}));
  const auto data = [&](DataSplit split) {
    return or_throw(make_dataset(DatasetOptions{
        .path = folder, .split = split, .fields = model.fields, .per_step = microbatch * microbatches}));
  };

  const auto device = make_cpu_device();
  const LayerGraph profile = profile_model(
      model, {.microbatch = microbatch, .warmup = 1, .repetitions = 2, .blocks = 1}, steady_clock(), *device);
  const Plan plan =
      or_throw(plan_layers(profile, ClusterSpec::local(ranks), PlannerOptions{.microbatches = microbatches}));
  std::printf("%s: %d stages on %d ranks, %s, predicted %.0f ms a step\n", model.name.c_str(),
              plan.num_stages(), plan.num_ranks(), to_string(plan.schedule).c_str(),
              plan.predicted_step_s * 1e3);

  LoaderOptions loader{.microbatch = microbatch, .microbatches_per_step = plan.microbatches};
  loader.read_for(model);
  const RunReport report = train_locally(model, plan,
                                         {.steps = std::atoll(word(5, "100").c_str()),
                                          .microbatch = microbatch,
                                          .rule = {.momentum = 0.9, .weight_decay = 1e-4},
                                          .learning_rate = {.base = 0.05, .policy = RatePolicy::Cosine}},
                                         batches_of(data(DataSplit::Train), data(DataSplit::Test), loader));
  std::printf("%.1f ms a step, loss %.4f\n", report.median_step_s * 1e3, report.losses.back());
  for (const EvaluationReport& evaluation : report.evaluations)
    for (const auto& [name, value] : evaluation.values)
      std::printf("evaluation %s %.4f\n", name.c_str(), value);
  return 0;
}

}  // namespace

int main(int argc, char** argv) try { return run(argc, argv); } catch (const std::exception& error) {
  return std::fprintf(stderr, "error: %s\n", error.what()), 1;
}
