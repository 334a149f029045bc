#include "driver/worker_options.h"

#include <cstdio>
#include <exception>

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include "runtime/device/host_memory.h"

namespace millrace {

Result<LayeredModel> model_from(Arguments& arguments) {
  ModelOptions options{.num_classes = static_cast<int>(arguments.integer("classes", 0, 1'000'000)),
                       .image_size = static_cast<int>(arguments.integer("image-size", 0, 4096)),
                       .width = static_cast<int>(arguments.integer("width", 0, 1 << 20)),
                       .depth = static_cast<int>(arguments.integer("depth", 0, 10'000)),
                       .dropout = arguments.number("dropout", -1, 0.999)};
  if (!arguments.problems().empty()) return arguments.problems();
  return make_model(arguments.string("model"), options);
}

void set_compute_threads(int threads, bool deterministic) {
  install_host_allocator();
  if (threads > 0) at::set_num_threads(threads);
  if (deterministic) at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
}

int report_problems(const Problems& problems, ExitCode code) {
  for (const Problem& problem : problems) std::fprintf(stderr, "error: %s\n", to_string(problem).c_str());
  return static_cast<int>(code);
}

int guarded(const std::function<int()>& body) {
  try {
    return body();
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    if (!error.hint().empty()) std::fprintf(stderr, "Hint: %s\n", error.hint().c_str());
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "error: out of memory\nHint: use a smaller --microbatch or more stages\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
  }
  return static_cast<int>(ExitCode::RunFailed);
}

}  // namespace millrace
