// Pre-training of BERT with LAMB and a loop of one's own: step by step, the learning rate's recipe, both
// losses, and an end when the masked words are learned well enough.
//   bert [DATA [STEPS [LOSS]]]      e.g. bert wikitext 10000 3.5
#include <millrace/millrace.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) try {
  using namespace millrace;
  const auto word = [&](int i, const char* fallback) { return std::string(argc > i ? argv[i] : fallback); };
  const int microbatch = 8, microbatches = 2;
  const std::int64_t steps = std::atoll(word(2, "30").c_str());
  const double enough = std::atof(word(3, "0").c_str());

  const Result<LayeredModel> model = make_model("bert_base", {{"layers", "2"},
                                                              {"hidden", "64"},
                                                              {"heads", "4"},
                                                              {"feed-forward", "128"},
                                                              {"vocabulary", "1000"},
                                                              {"length", "32"}});
  if (!model) throw ConfigError(to_string(model.problems()));
  const auto data = make_dataset(DatasetOptions{.path = word(1, "synthetic:256"),
                                                .fields = model->fields,
                                                .dimensions = model->dimensions,
                                                .per_step = microbatch * microbatches});
  if (!data) throw DataError(to_string(data.problems()));
  LoaderOptions loader{.microbatch = microbatch, .microbatches_per_step = microbatches};
  loader.read_for(*model);

  const auto world = make_local_communicators(1, std::chrono::seconds(60));
  const auto device = make_cpu_device();
  Trainer trainer(
      {*world[0], steady_clock(), *device}, *model,
      uniform_plan(model->name, model->layer_names(), 1, 1, microbatches, ScheduleKind::GPipe),
      {.steps = steps,
       .microbatch = microbatch,
       .rule = {.kind = UpdateRuleKind::Lamb,
                .weight_decay = 0.01,
                .no_decay = std::vector{ParameterGroup::Bias, ParameterGroup::Norm}},
       .learning_rate = {.base = 4e-3, .policy = RatePolicy::Polynomial, .warmup_fraction = 0.1, .power = 1},
       .print_every = steps},
      batches_of(*data, nullptr, loader));
  while (trainer.step()) {
    const double loss = trainer.report().losses.back();
    if (trainer.steps_done() % 10 == 0)
      std::printf("step %lld loss %.4f\n", static_cast<long long>(trainer.steps_done()), loss);
    if (loss < enough) break;
  }
  std::printf("loss %.4f -> %.4f\n", trainer.report().losses.front(), trainer.report().losses.back());
  return 0;
} catch (const std::exception& error) {
  return std::fprintf(stderr, "error: %s\n", error.what()), 1;
}
