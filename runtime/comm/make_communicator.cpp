#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/gloo_communicator.h"

namespace millrace {

std::unique_ptr<Communicator> make_communicator(const CommunicatorOptions& options,
                                                std::shared_ptr<Store> store) {
  if (options.backend == "gloo") return make_gloo_communicator(options, std::move(store));
  const auto near = nearest_name(options.backend, {"gloo"});
  throw ConfigError("unknown transport '" + options.backend + "' between processes",
                    near ? "did you mean '" + *near + "'?" : "one of: gloo");
}

}  // namespace millrace
