// The pages that `millrace report --serve` shows, and the server that hands them out.
#include "experiments/report/page_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <future>
#include <string>
#include <thread>

#include "experiments/report/served_runs.h"
#include "runtime/base/run_folder.h"
#include "tests/driver/temporary_folder.h"
#include "tests/experiments/example_run.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using std::chrono_literals::operator""ms;

/// A connection to the server, whose every wait ends after half a minute.
class Client {
 public:
  explicit Client(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const timeval most{.tv_sec = 30, .tv_usec = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_port = htons(port);
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    reached_ = ::connect(socket_, reinterpret_cast<const sockaddr*>(&place), sizeof place) == 0;
  }
  ~Client() { ::close(socket_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool reached() const { return reached_; }
  /// The server may have closed already; what it answers tells.
  void send(const std::string& text) { ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL); }
  /// Returns what comes until the server closes; "no end" if it does not.
  std::string rest() {
    std::string all;
    char part[4096];
    for (;;) {
      const ssize_t size = ::recv(socket_, part, sizeof part, 0);
      if (size == 0 || (size < 0 && errno == ECONNRESET)) return all;
      if (size < 0) return "no end";
      all.append(part, static_cast<std::size_t>(size));
    }
  }

 private:
  int socket_;
  bool reached_ = false;
};

std::string answer(std::uint16_t port, const std::string& request) {
  Client client(port);
  client.send(request);
  return client.rest();
}
std::string get(std::uint16_t port, const std::string& target, const std::string& host = "127.0.0.1") {
  return answer(port, "GET " + target + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
}

/// A server in a thread of its own. It says which paths it was asked for.
class PageServer : public testing::Test {
 protected:
  void start(std::chrono::milliseconds deadline = 30'000ms) {
    std::promise<std::uint16_t> port;
    thread_ = std::jthread([this, deadline, &port](std::stop_token stop) {
      const Status served = serve_pages(
          {.deadline = deadline, .listening = [&](std::uint16_t p) { port.set_value(p); }, .stop = stop},
          [](const std::string& path) {
            return path == "/a b/report.html" ? std::optional<std::string>("the page") : std::nullopt;
          });
      EXPECT_TRUE(served) << to_string(served.problems());
    });
    port_ = port.get_future().get();
  }
  std::uint16_t port_ = 0;
  std::jthread thread_;
};

TEST_F(PageServer, AnswersWhatItKnowsAndNothingElse) {
  start();
  const std::string page = get(port_, "/a%20b/report.html?x=1");
  EXPECT_TRUE(page.starts_with("HTTP/1.1 200 OK\r\n")) << page;
  EXPECT_TRUE(page.ends_with("\r\n\r\nthe page")) << page;
  EXPECT_NE(page.find("Cache-Control: no-store"), std::string::npos) << page;
  EXPECT_TRUE(get(port_, "/a%20b/report.html", "localhost:9000").ends_with("the page")) << "through a tunnel";
  const std::string head = answer(port_, "HEAD /a%20b/report.html HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_NE(head.find("Content-Length: 8\r\n"), std::string::npos) << head;
  EXPECT_TRUE(head.ends_with("\r\n\r\n")) << head;
  for (const char* target :
       {"/", "/etc/passwd", "/a%20b/../a%20b/report.html", "/%2e%2e/report.html", "/%", "/%0"})
    EXPECT_TRUE(get(port_, target).starts_with("HTTP/1.1 404 ")) << target;
  EXPECT_TRUE(get(port_, "/a%20b/report.html", "evil.example").starts_with("HTTP/1.1 421 "))
      << "another site's";
  const std::string posted = answer(port_, "DELETE / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_TRUE(posted.starts_with("HTTP/1.1 405 ")) << posted;
  EXPECT_EQ(get(port_, "/" + std::string(40'000, 'a')).find("200"), std::string::npos);
  EXPECT_EQ(answer(port_, "nonsense\r\n\r\n"), "");
}

TEST_F(PageServer, ARequestThatDoesNotComeIsGivenUp) {
  start(50ms);
  Client silent(port_), slow(port_);
  slow.send("GET / HT");
  EXPECT_EQ(silent.rest(), "");
  EXPECT_EQ(slow.rest(), "");
}

TEST_F(PageServer, StopsAtOnceWhoeverIsConnected) {
  start();
  Client open(port_);
  ASSERT_TRUE(open.reached());
  thread_.request_stop();
  thread_.join();
  EXPECT_EQ(open.rest(), "");
}

TEST_F(PageServer, ATakenPortIsAProblem) {
  start();
  const Status second =
      serve_pages({.port = port_}, [](const std::string&) { return std::optional<std::string>(); });
  ASSERT_FALSE(second);
  EXPECT_NE(to_string(second.problems()).find("give another --port"), std::string::npos);
}

TEST(ServedRuns, APageIsWhatTheRunHasWrittenUntilThen) {
  const TemporaryFolder folder;
  const fs::path root = folder.path();
  fs::create_directories(root / "runs/first one");
  fs::create_directories(root / "runs/deeper/second");
  example::write_run(root / "runs/first one", example::plan(), 20);
  ServedRuns runs({.run = {}, .index = (root / "runs").string(), .against = {}});
  std::optional<std::string> index = runs.page("/");
  ASSERT_TRUE(index);
  EXPECT_NE(index->find("href=\"first%20one/report.html\""), std::string::npos);
  EXPECT_NE(index->find("http-equiv=\"refresh\""), std::string::npos);
  EXPECT_EQ(index->find("deeper/second"), std::string::npos);
  example::write_run(root / "runs/deeper/second", example::plan(), 20);
  EXPECT_NE(runs.page("/")->find("deeper/second"), std::string::npos) << "a run that came later";
  ASSERT_TRUE(runs.page("/first one/report.html"));
  EXPECT_FALSE(fs::exists(root / "runs/first one/report.html")) << "nothing is written";
  for (const char* path : {"/first one", "/first one/plan.json", "/../runs/first one/report.html",
                           "/report.html", "/deeper/../first one/report.html", "//etc/passwd", ""})
    EXPECT_FALSE(runs.page(path)) << path;

  // A run that goes on: its page reloads itself, and is new as soon as a rank has written.
  fs::remove(root / "runs/first one/summary.json");
  {
    const auto lock = RunLock::acquire(root / "runs/first one", "an-id");
    ASSERT_TRUE(lock);
    const std::string before = *runs.page("/first one/report.html");
    EXPECT_NE(before.find("http-equiv=\"refresh\" content=\"5\""), std::string::npos);
    EXPECT_EQ(*runs.page("/first one/report.html"), before);
    example::write_run(root / "runs/first one", example::plan(), 30);
    fs::last_write_time(root / "runs/first one/steps.rank0.jsonl",
                        fs::file_time_type::clock::now() + std::chrono::hours(1));
    EXPECT_NE(*runs.page("/first one/report.html"), before);
  }
  EXPECT_EQ(runs.page("/first one/report.html")->find("http-equiv=\"refresh\""), std::string::npos)
      << "it is done";
}

TEST(ServedRuns, ARunThatHasNotBegunIsWaitedFor) {
  const TemporaryFolder folder;
  ServedRuns runs({.run = (fs::path(folder.path()) / "soon").string(), .index = {}, .against = {}});
  const std::optional<std::string> page = runs.page("/");
  ASSERT_TRUE(page);
  EXPECT_NE(page->find("No run has written anything here yet"), std::string::npos);
  EXPECT_NE(page->find("http-equiv=\"refresh\""), std::string::npos);
}

/// The command itself: it says its address, answers there, and Ctrl-C ends it.
TEST(ReportServe, CtrlCEndsIt) {
  const TemporaryFolder folder;
  const std::string run = folder.path();
  example::write_run(run, example::plan(), 20);
  int said[2];
  ASSERT_EQ(::pipe(said), 0);
  const pid_t process = ::fork();
  if (process == 0) {
    ::signal(SIGINT, SIG_DFL);
    ::dup2(said[1], STDOUT_FILENO);
    ::close(said[0]);
    ::close(said[1]);
    ::alarm(60);  // it ends even if this test does not end it
    ::execl(MILLRACE_BIN_DIR "/millrace", "millrace", "report", run.c_str(), "--serve", "--port", "0",
            nullptr);
    ::_exit(127);
  }
  ::close(said[1]);
  std::string line;
  for (char c; ::read(said[0], &c, 1) == 1 && c != '\n';) line += c;
  const std::string before = "http://127.0.0.1:";
  ASSERT_TRUE(line.starts_with(before)) << line;
  const int port = std::stoi(line.substr(before.size()));
  EXPECT_NE(get(static_cast<std::uint16_t>(port), "/").find("vgg16"), std::string::npos);
  Client open(static_cast<std::uint16_t>(port));
  EXPECT_TRUE(open.reached());
  for (char c; ::read(said[0], &c, 1) == 1 && c != '\n';) {  // its second line, after which it is ready
  }
  ::kill(process, SIGINT);
  int status = 0;
  ASSERT_EQ(::waitpid(process, &status, 0), process);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
  ::close(said[0]);
}

}  // namespace
}  // namespace millrace
