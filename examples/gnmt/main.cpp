// GNMT written down by its options, trained on pairs of token files (docs/text.md) or on made-up text, in as
// many stages as are asked for; PipeDream's asynchronous schedule is one word away.
//   gnmt [DATA [STAGES [STEPS]]]      e.g. gnmt multi30k:de-en 4 2000
#include <millrace/millrace.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) try {
  using namespace millrace;
  const auto word = [&](int i, const char* fallback) { return std::string(argc > i ? argv[i] : fallback); };
  const int stages = std::atoi(word(2, "2").c_str()), microbatch = 16, microbatches = 4;

  const Result<LayeredModel> model = make_model(
      "gnmt",
      {{"layers", "2"}, {"hidden", "64"}, {"vocabulary", "2000"}, {"length", "16"}, {"dropout", "0.2"}});
  if (!model) throw ConfigError(to_string(model.problems()));
  const auto open = [&](DataSplit split) {
    auto data = make_dataset(DatasetOptions{.path = word(1, "synthetic:512"),
                                            .split = split,
                                            .fields = model->fields,
                                            .dimensions = model->dimensions,
                                            .per_step = microbatch * microbatches});
    if (!data) throw DataError(to_string(data.problems()));
    return *data;
  };
  LoaderOptions loader{.microbatch = microbatch, .microbatches_per_step = microbatches};
  loader.read_for(*model);
  const Plan plan =
      uniform_plan(model->name, model->layer_names(), stages, 1, microbatches, ScheduleKind::OneFOneB);
  const RunReport report =
      train_locally(*model, plan,
                    {.steps = std::atoll(word(3, "50").c_str()),
                     .microbatch = microbatch,
                     .rule = {.kind = UpdateRuleKind::Adam},
                     .clip = {.norm = 5.0},
                     .learning_rate = {.base = 1e-3, .policy = RatePolicy::Gnmt, .warmup_steps = 10}},
                    batches_of(open(DataSplit::Train), open(DataSplit::Test), loader));
  std::printf("loss %.4f -> %.4f\n", report.losses.front(), report.losses.back());
  for (const EvaluationReport& evaluation : report.evaluations)
    for (const auto& [name, value] : evaluation.values)
      std::printf("evaluation %s %.4f\n", name.c_str(), value);
  return 0;
} catch (const std::exception& error) {
  return std::fprintf(stderr, "error: %s\n", error.what()), 1;
}
