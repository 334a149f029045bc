// millrace-worker: the commands that compute, on the CPU. `millrace` hands them over.
#include <cstdlib>

#include "driver/worker/worker_options.h"

int main(int argc, char** argv) {
  // LibTorch's destructors take a third of a short command's processor time, and free what the process's end
  // frees.
  std::_Exit(millrace::worker_program({argv + 1, argv + argc}, {}));
}
