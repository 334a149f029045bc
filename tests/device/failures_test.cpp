// A failure of a computation keeps its class and hint, and names the computation in front.
#include "runtime/device/failures.h"

#include <gtest/gtest.h>

#include <c10/util/Exception.h>

#include <functional>
#include <new>
#include <stdexcept>

#include "runtime/base/error.h"

namespace millrace {
namespace {

void fail_with(const std::function<void()>& work) {
  try {
    work();
  } catch (...) {
    rethrow_with("layer fc: ");
  }
}

template <class Expected>
void expect_failure(const std::function<void()>& work, const std::string& begin, const std::string& hint) {
  try {
    fail_with(work);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Expected& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with(begin)) << error.what();
    EXPECT_EQ(error.hint(), hint);
  }
}

TEST(Failures, ErrorsKeepClassAndHint) {
  expect_failure<DataError>([] { throw DataError("target 9", "give --classes"); }, "layer fc: target 9",
                            "give --classes");
  expect_failure<NumericError>([] { throw NumericError("nan", "lower --lr"); }, "layer fc: nan",
                               "lower --lr");
}

TEST(Failures, APeersFailureNamesItsOwnAction) {
  expect_failure<PeerError>([] { throw PeerError("1RECV_F2: no message", "wait"); }, "1RECV_F2: no message",
                            "wait");
}

TEST(Failures, OutOfMemoryIsSaidAsSuch) {
  expect_failure<OutOfMemory>([] { throw std::bad_alloc(); }, "layer fc: out of memory: ", kLessMemory);
  expect_failure<OutOfMemory>([] { TORCH_CHECK_WITH(OutOfMemoryError, false, "no room for 1 GiB"); },
                              "layer fc: ", kLessMemory);
  EXPECT_NE(out_of_memory_text(3 << 20).find("3.0 MiB"), std::string::npos) << out_of_memory_text(3 << 20);
}

TEST(Failures, OthersBecomeAFailedRun) {
  try {
    fail_with([] { throw std::runtime_error("shapes do not fit"); });
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "layer fc: shapes do not fit");
    EXPECT_EQ(error.code(), ExitCode::RunFailed);
  }
}

}  // namespace
}  // namespace millrace
