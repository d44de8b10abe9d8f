"""Every lint finds a planted error, and lets the right form pass. Run: python3 -m unittest tests/lint/lint_test.py"""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
import check_coroutines
import check_cycles
import check_docs
import check_format
import check_habits
import check_layers
import check_python
import check_sizes
from sources import code_of


class LintTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def found(self, lint, name, text, *more):
        """What the lint says of a tree of one file."""
        path = pathlib.Path(self.folder.name, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        result = list(lint.findings(self.folder.name, *more))
        path.unlink()
        return result

    def assert_found(self, lint, name, text, words):
        result = self.found(lint, name, text)
        self.assertEqual(len(result), 1, result)
        self.assertIn(words, result[0])

    def assert_clean(self, lint, name, text):
        self.assertEqual(self.found(lint, name, text), [])


class Layers(LintTest):
    def test_upward_include_is_found(self):
        self.assert_found(
            check_layers, "common/codec/a.cc", '#include "transport/frame.h"\n', "may not include transport"
        )

    def test_server_and_worker_stay_apart(self):
        self.assert_found(check_layers, "worker/loop/a.h", '#include "server/config.h"\n', "may not include server/config")
        self.assert_found(check_layers, "server/a.cc", '#include "worker/data/b.h"\n', "may not include worker/data")

    def test_clients_stand_on_no_built_in_model(self):
        below = [module for module in check_layers.MAY if module.startswith("client")]
        for module in below:
            below += [other for other in check_layers.MAY[module] if other not in below]
        self.assertIn("worker/loop", below)
        self.assertTrue({"worker/data", "worker/model", "worker/node"}.isdisjoint(below))

    def test_downward_include_passes(self):
        self.assert_clean(check_layers, "transport/a.cc", '#include "common/base/result.h"\n#include "transport/frame.h"\n')

    def test_file_of_no_module_is_found(self):
        self.assert_found(check_layers, "common/new/a.h", '#include "common/base/result.h"\n', "belongs to no module")

    def test_implementation_file_is_found(self):
        self.assert_found(check_layers, "tests/a.cc", '#include "transport/tcp.cc"\n', "implementation file")

    def test_third_party_header_has_a_home(self):
        for header, home in {
            "boost/beast/http.hpp": "transport/http/a.cc",
            "boost/asio/ip/tcp.hpp": "transport/tcp.cc",
            "prometheus/registry.h": "common/base/prometheus_registry.cc",
            "nlohmann/json.hpp": "common/base/config.cc",
            "cblas.h": "common/device/blas.cc",
            "nccl.h": "worker/node/nccl.cc",
            "cuda_runtime.h": "common/device/cuda_device.cc",
        }.items():
            with self.subTest(header=header):
                include = f"#include <{header}>\n"
                self.assert_clean(check_layers, home, include)
                self.assert_clean(check_layers, "tests/unit/a.cc", include)
                self.assert_found(check_layers, "worker/model/a.cc", include, "may be included only in")

    def test_cuda_sources_are_looked_at(self):
        self.assert_clean(check_layers, "common/codec/cuda/a.cuh", "#include <cuda_runtime.h>\n")
        self.assert_clean(check_layers, "common/device/cuda/a.cc", "#include <cuda_runtime.h>\n")
        self.assert_found(check_layers, "common/device/cuda/a.h", "#include <cuda_runtime.h>\n", "may be included only in")
        self.assert_found(check_layers, "common/codec/cuda/a.cuh", '#include "server/config.h"\n', "may not include server")

    def test_table_has_no_cycle_and_a_cycle_is_found(self):
        self.assertEqual(check_layers.cycle(check_layers.MAY), [])
        self.assertEqual(check_layers.cycle({"a": ["b"], "b": ["a"]}), ["a", "b", "a"])

    def test_table_names_known_modules_only(self):
        for module, below in check_layers.MAY.items():
            for name in below:
                self.assertIn(name, check_layers.MAY, module)


class Coroutines(LintTest):
    NAME = "transport/a.cc"

    def body(self, statements):
        return "Task<int> f(Buffer& b) {\n" + statements + "\n}\n"

    def test_brace_in_a_co_await_statement_is_found(self):
        for statement in (
            "  co_await g(Header{1, 2});",
            "  auto r = co_await g({1, 2}, b);",
            "  if (co_await g(Header{1})) {\n    co_return 1;\n  }",
            "  co_return co_await g(std::vector<int>{1});",
        ):
            with self.subTest(statement=statement):
                self.assert_found(check_coroutines, self.NAME, self.body(statement), "name it on the line above")

    def test_lambda_in_a_co_await_statement_is_found(self):
        self.assert_found(
            check_coroutines, self.NAME, self.body("  co_await run_on(e, [&b] { return b.size(); });"), "brace or lambda"
        )

    def test_named_value_and_blocks_pass(self):
        self.assert_clean(
            check_coroutines,
            self.NAME,
            self.body(
                "  Header h{1, 2};\n  co_await g(h);\n  for (int i = 0; i < 2; ++i) {\n    co_await g(h);\n  }\n"
                "  // co_await g({1})\n  if (co_await g(h)) {\n    co_return 1;\n  } else {\n    co_await g(h);\n  }"
            ),
        )

    def test_reason_on_the_line_waives(self):
        self.assert_clean(check_coroutines, self.NAME, self.body("  co_await g({1});  // lint-ok: trivial destructor"))

    def test_co_await_in_a_branch_is_found(self):
        self.assert_found(check_coroutines, self.NAME, self.body("  x = a ? co_await f() : co_await g();"), "write if and else")
        self.assert_found(check_coroutines, self.NAME, self.body("  x = a ? 1\n    : co_await g();"), "write if and else")
        self.assert_clean(check_coroutines, self.NAME, self.body("  x = co_await f(a ? 1 : 2);"))

    def test_coroutine_lambda_with_captures_is_found(self):
        self.assert_found(
            check_coroutines,
            self.NAME,
            "void f() {\n  auto run = [this]() -> Task<void> { co_return; };\n  spawn(run);\n}\n",
            "captures nothing",
        )

    def test_coroutine_lambda_without_captures_passes(self):
        self.assert_clean(
            check_coroutines,
            self.NAME,
            "void f() {\n  auto run = [](Session* s) -> Task<void> { co_await s->close(); };\n  spawn(run);\n}\n",
        )

    def test_plain_lambda_around_a_coroutine_lambda_passes(self):
        self.assert_clean(
            check_coroutines,
            self.NAME,
            "void f() {\n  auto run = [this] { spawn([](Session* s) -> Task<void> { co_await s->close(); }); };\n}\n",
        )

    def test_wait_in_a_loop_that_drops_its_result_is_found(self):
        for statement in (
            "  while (is_full())\n    co_await sleep_until(now() + kLook);",
            "  for (; busy;) co_await done_.wait(TimePoint::max());",
            "  for (;;) {\n    if (open) (void)co_await link->wake.wait(TimePoint::max());\n  }",
            "  do {\n    co_await sleep_until(again);\n  } while (busy);",
        ):
            with self.subTest(statement=statement):
                self.assert_found(check_coroutines, self.NAME, self.body(statement), "whose result is dropped")

    def test_wait_whose_result_is_looked_at_passes(self):
        for statement in (
            "  while (is_full())\n    if (!co_await sleep_until(now() + kLook)) co_return;",
            "  while (a < b) co_await changed_.wait(limit);",
            "  while (x) {\n    const bool goes_on = co_await done_.wait(TimePoint::max());\n    if (!goes_on) break;\n  }",
            "  while (x) {\n    f();\n  }\n  co_await sleep_until(again);",
            "  while (x)\n    co_await sleep_until(again);  // lint-ok: cancellation is off",
        ):
            with self.subTest(statement=statement):
                self.assert_clean(check_coroutines, self.NAME, self.body(statement))


class Habits(LintTest):
    def test_sleep_in_a_test_is_found(self):
        self.assert_found(check_habits, "tests/unit/a.cc", "std::this_thread::sleep_for(1ms);\n", "does not sleep")
        self.assert_found(check_habits, "tests/process/a.py", "time.sleep(1)\n", "does not sleep")
        self.assert_clean(check_habits, "transport/a.cc", "std::this_thread::sleep_for(1ms);\n")

    def test_imports_of_tests(self):
        for text in ("import a_test\n", "from process.a_test import A\n", "def f():\n    import a_test as b\n"):
            self.assert_found(check_habits, "tests/process/b_test.py", text, "tests/harness")
        agreed = "sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))\n"
        self.assert_clean(check_habits, "tests/process/b_test.py", f"{agreed}from harness.cluster import main\n# a_test.py\n")
        for text in ("sys.path.append('process')\n", agreed.replace("[1]", "[2]"), agreed.replace("\n", "; import os\n")):
            self.assert_found(check_habits, "tests/process/b_test.py", text, "only the folder tests")

    def test_comment_and_waiver_pass(self):
        self.assert_clean(check_habits, "tests/unit/a.cc", "// no sleep_for( here\nusleep(1);  // lint-ok: paces a poll\n")
        python = "# a comment before it\ntime.sleep(1)  # lint-ok: paces a poll\n"
        self.assert_clean(check_habits, "tests/process/a.py", python)

    def test_environment_read_outside_config_is_found(self):
        self.assert_found(check_habits, "server/a.cc", 'auto x = std::getenv("HOME");\n', "common/base/config only")
        self.assert_clean(check_habits, "common/base/config.cc", 'auto x = std::getenv("HOME");\n')

    def test_detached_work_outside_main_is_found(self):
        self.assert_found(check_habits, "server/a.cc", "co_spawn(e, run(), boost::asio::detached);\n", "joined group")
        self.assert_found(check_habits, "worker/a.cc", "std::thread(run).detach();\n", "joined group")
        self.assert_clean(check_habits, "server/main.cc", "co_spawn(e, run(), boost::asio::detached);\n")

    def test_default_stream_and_waits_for_a_device_are_found(self):
        waits = ("cudaDeviceSynchronize();", "cudaMemcpy(a, b, n, cudaMemcpyDeviceToHost);", "cudaMemset(a, 0, n);", "add<<<blocks, threads>>>(a, n);")
        for call in (*waits, "auto s = cudaStreamLegacy;", "cuCtxSynchronize();", "add<<<1, 32, 0>>>(a, n);"):
            self.assert_found(check_habits, "common/device/cuda/a.cu", f"{call}\n", "no default stream")
        for call in ("cudaMemcpyAsync(a, b, n, kind, stream);", "add<<<blocks, threads, 0, stream>>>(a, n);", "cudaStreamSynchronize(stream);"):
            self.assert_clean(check_habits, "common/device/cuda/a.cu", f"{call}\n")

    def test_poll_in_the_server_is_found(self):
        poll = "while (!done_) co_await sleep_until(now() + kPause);"
        self.assert_found(check_habits, "server/service/a.cc", f"{poll}\n", "does not poll")
        self.assert_clean(check_habits, "server/service/a.cc", "co_await sleep_until(limit);  // lint-ok: a deadline\n")
        self.assert_clean(check_habits, "worker/loop/a.cc", f"{poll}\n")

    def test_wait_without_a_condition_is_found(self):
        for call in ("co_await changed_.wait(limit);", "(void)co_await link->wake.wait(limit);"):
            self.assert_found(check_habits, "server/shard/a.cc", f"{call}\n", "says what for")
            self.assert_clean(check_habits, "transport/a.cc", f"{call}\n")
        self.assert_clean(check_habits, "server/service/a.cc", "co_await until(is_free, std::move(on), limit);\n")

    def test_file_operation_beside_the_storage_is_found(self):
        for call in (
            "std::ifstream in(path);",
            'auto* f = fopen(name, "r");',
            "const int fd = ::open(path.c_str(), O_RDONLY);",
            "if (::fsync(fd) != 0) return;",
            "fs::remove_all(path, ignored);",
            "for (const auto& item : std::filesystem::directory_iterator(root)) use(item);",
            "std::rename(a.c_str(), b.c_str());",
            "void* p = ::mmap(nullptr, n, PROT_READ, MAP_PRIVATE, fd, 0);",
        ):
            for name in ("server/service/a.cc", "common/checkpoint/a.cc", "worker/exchange/a.cc", "client/a.cc"):
                self.assert_found(check_habits, name, f"{call}\n", "go through common/storage")
        for name in ("common/storage/posix_storage.cc", "worker/data/a.cc", "transport/a.cc", "tests/unit/a.cc"):
            self.assert_clean(check_habits, name, "std::ifstream in(path);\n")
        for call in ("file::remove_all(path);", "fs::path at = fs::absolute(path);", "return Reader::read(into);", "std::remove(a, b, c);"):
            self.assert_clean(check_habits, "server/a.cc", f"{call}\n")

    def test_long_file_is_found(self):
        self.assert_found(check_habits, "server/a.cc", "\n" * 601, "split")
        self.assert_found(check_habits, "common/codec/cuda/a.cuh", "\n" * 601, "split")
        self.assert_clean(check_habits, "server/a.cc", "\n" * 600)

    def test_wide_comment_is_found(self):
        for comment in ("///", "  ///", "  //"):
            widest = comment + " " + "x" * (99 - len(comment))
            self.assert_clean(check_habits, "server/a.h", widest[:-1] + "x\u0302\n")
            self.assert_found(check_habits, "server/a.h", widest + "x\n", "of 101 columns; wrap it by hand at 100")


class Sizes(LintTest):
    """Figures of given sources; then what is too large, and lists that are not right, are planted."""

    def sizes(self, text):
        found = check_sizes.sizes_of("server/a.h", text)
        return {item.name: item[3:] for item in found}

    def function(self, lines, name="f"):
        return f"int {name}() {{\n" + "  g();\n" * (lines - 2) + "}\n"

    def test_methods_and_fields_are_counted(self):
        text = """
namespace centroid::server {
template <class T, class U = std::map<int, T>>
class Big final : public Base<T> {
 public:
  Big(const Big&) = delete;
  explicit Big(int a) : a_(a), b_{1, 2} { run(); }
  ~Big();
  [[nodiscard]] bool operator()(int x) const;
  friend bool operator==(const Big& a, const Big& b) { return a.a_ == b.a_; }
  Big& operator=(const Big&) = default;
  explicit operator bool() const { return a_ > 0; }
  template <class V>
  std::function<void(V)> make(std::function<void(int)> with = {}) const;
  virtual Task<Result<std::vector<std::pair<int, int>>>> read(Span<const std::byte> in) = 0;
  static constexpr int kSize = f(3);
  using Map = std::map<int, int>;
  struct Inner {
    int x = 0, y{f(1)};  // two; not( these)
  };
  enum class Kind : std::uint8_t { kOne, kTwo };
  static_assert(sizeof(int) == 4);

 private:
  friend class Other;
  class Later;
  int a_ = f(1, 2);
  std::pair<int, int> b_;
  std::function<void(int)> call_ = [](int) { g(); };
  void (*plain_)(int, int) = nullptr;
  std::atomic<Time::rep> ticks_{Time(hours(1)).count()};
  alignas(64) char room_[SPACE(sizeof(int))] = {};
  std::map<int, std::map<int, int>> c_, d_;
  static int shared_;
};
}  // namespace centroid::server
"""
        sizes = self.sizes(text)
        self.assertEqual(sizes["centroid::server::Big::Inner"], (0, 2))
        self.assertEqual(sizes["centroid::server::Big"], (9, 9))

    def test_lines_and_names_of_functions(self):
        text = """
namespace centroid {
namespace {
const std::map<int, int> kMap = {{1, 2}};
int one() { return "}"[0] + '{'; }
template <class T>
Result<std::vector<T>>
two(int a,
    int b) {
  struct Local { int x; };
  auto f = [a] {
    return R"("{{{)";
  };
  if (a) { f(); }
}
}  // namespace
#define BRACE {
Big::Big(int a)
    : a_(a), b_{a} {
}
Status Big::Inner::run() noexcept { return {}; }
bool Big::operator()(int x) const { return x; }
std::unique_ptr<A> make() {
  return std::make_unique<A>(A{1});
}
}  // namespace centroid
"""
        self.assertEqual(
            self.sizes(text),
            {
                "centroid::one": (1,),
                "centroid::two::Local": (0, 1),
                "centroid::two": (10,),
                "centroid::Big::Big": (3,),
                "centroid::Big::Inner::run": (1,),
                "centroid::Big::operator()": (1,),
                "centroid::make": (3,),
            },
        )

    def test_braces_that_do_not_match_are_no_silence(self):
        for text in ("int f() {\n", "int f() {}}\n", "int f({)};\n"):
            with self.assertRaises(ValueError):
                check_sizes.sizes_of("server/a.h", text)

    def test_what_is_too_large_is_found(self):
        large = {
            "methods": "class A {\n" + "".join(f"  void f{i}();\n" for i in range(61)) + "};\n",
            "fields": "struct A {\n" + "".join(f"  int f{i} = 0;\n" for i in range(41)) + "};\n",
            "lines": self.function(81, "A"),
        }
        for what, text in large.items():
            limit = check_sizes.LIMITS[what]
            with self.subTest(what=what):
                self.assert_found(check_sizes, "server/a.h", text, f"server/a.h:1: A has {limit + 1} {what}, at most {limit}")
                self.assert_clean(check_sizes, "tests/a.h", text)
        self.assert_clean(check_sizes, "server/a.cc", self.function(80))

    def test_raw_strings_are_no_code(self):
        self.assertEqual(code_of('a = R"x("{)" // )x"; b = "//"; c').split(), ["a", "=", ";", "b", "=", ";", "c"])


class Cycles(LintTest):
    def write(self, name, *headers):
        path = pathlib.Path(self.folder.name, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f'#include "{header}"\n' for header in headers), encoding="utf-8")

    def assert_all(self, *words):
        found = list(check_cycles.findings(self.folder.name))
        self.assertEqual(len(found), len(words), found)
        for text, word in zip(found, words):
            self.assertIn(word, text)
        return found

    def test_modules_that_need_each_other_are_found(self):
        self.write("server/a/one.h")
        self.write("server/a/one.cc", "server/a/one.h", "server/a/two.h")
        self.write("server/a/two.h", "server/a/three.h")
        self.write("server/a/three.h")
        self.write("server/a/leaf.h", "server/a/one.h", "server/a/two.h")
        self.assert_all()
        self.write("server/a/three_more.cc", "server/a/three.h", "server/a/one.h")
        found = self.assert_all("modules in a cycle: server/a/one server/a/three server/a/two;")
        self.assertIn("server/a/three -> server/a/one: server/a/three_more.cc includes server/a/one.h", found[0])

    def test_source_without_header_is_found(self):
        self.write("server/a/one.h")
        self.write("server/a/other.cc", "server/a/one.h")
        self.assert_all("server/a/other.cc: name it as its header")

    def test_folders_that_include_each_other_are_found(self):
        self.write("server/a/a.h", "server/b/b.h", "server/a/c.h", "common/base/d.h")
        self.write("server/b/b.h", "server/config.h")
        self.write("server/a/c.h")
        self.assert_all()
        self.write("server/config.h", "server/a/c.h")
        found = self.assert_all("folders in a cycle: server server/a server/b;")
        self.assertIn("server/a -> server/b: server/a/a.h includes server/b/b.h", found[0])


class Format(LintTest):
    def test_badly_formatted_file_is_found(self):
        program = check_format.formatter()
        if program is None:
            self.skipTest("no clang-format 19 here")
        pathlib.Path(self.folder.name, ".clang-format").write_text("BasedOnStyle: Google\n", encoding="utf-8")
        self.assertEqual(self.found(check_format, "server/a.cc", "int f() { return 1; }\n", program), [])
        bad = self.found(check_format, "server/a.cc", "int f( ){return 1;}\n", program)
        self.assertEqual(len(bad), 1, bad)
        self.assertIn("server/a.cc", bad[0])


class Python(LintTest):
    def test_undefined_name_is_found(self):
        if shutil.which("pyflakes3") is None:
            self.skipTest("no pyflakes3 here")
        self.assert_clean(check_python, "tests/a.py", "import os\n\nprint(os.sep)\n")
        self.assert_found(check_python, "tests/a.py", "print(missing())\n", "undefined name 'missing'")


class Docs(LintTest):
    """Pages of a tree of their own; each finding is of one fault."""

    def write(self, name, text):
        path = pathlib.Path(self.folder.name, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def test_long_page_is_found(self):
        self.assert_found(check_docs, "docs/how-to/a.md", "a\n" * 251, "251 lines")
        self.assert_clean(check_docs, "docs/how-to/a.md", "a\n" * 250)
        self.assert_clean(check_docs, "docs/reference/a.md", "a\n" * 251)
        self.assert_clean(check_docs, "CHANGELOG.md", "a\n" * 251)

    def test_wide_prose_is_found_and_tables_and_code_are_not(self):
        wide = "b " * 50 + "b"
        self.assert_found(check_docs, "docs/a.md", f"a\n\n{wide}\n", "docs/a.md:3: a line of 101 columns")
        self.assert_found(check_docs, "docs/a.md", f"a | b\n---|---\n1 | 2\n\n{wide}\n", "docs/a.md:5: a line of 101 columns")
        for text in (f"```\n{wide}\n```\n", f"~~~text\n```\n{wide}\n~~~\n", f"| {wide} |\n|---|\n| {wide} |\n", f"a | {wide}\n---|:---:\n1 | {wide}\n"):
            with self.subTest(text=text):
                self.assert_clean(check_docs, "docs/a.md", text)
        self.assert_clean(check_docs, "docs/a.md", wide[:-1] + "\u0302\n")

    def test_too_many_words_are_found(self):
        words = "word | -\n" * 22_500
        self.write("docs/reference/b.md", words)
        self.write("docs/reference/wire.md", words)
        self.assert_clean(check_docs, "docs/reference/a.md", words)
        self.assert_found(check_docs, "docs/reference/a.md", words + "word\n", "45001 words")

    def test_links_and_anchors(self):
        self.write("docs/how-to/b.md", "# Title, `code` and [a link](c.md)\n\n## Twice\n\n## Twice\n\n```\n# no heading\n```\n")
        self.write("docs/how-to/c.md", '<a id="here"></a>\n')
        for link in ("how-to/b.md", "how-to", "how-to/b.md#title-code-and-a-link", "how-to/b.md#twice-1", "how-to/c.md#here", "#own", "https://example.org/no.md", "mailto:a@b"):
            with self.subTest(link=link):
                self.assert_clean(check_docs, "docs/a.md", f"## Own\n\n[text]({link}), ![image]({link})\n\n[text]: {link}\n")
        for link, words in {"b.md": "no such file", "how-to/b.md#twice-2": "no such anchor", "how-to/b.md#no-heading": "no such anchor", "#other": "no such anchor"}.items():
            with self.subTest(link=link):
                self.assert_found(check_docs, "docs/a.md", f"## Own\n\n[text]({link})\n", f"docs/a.md:3: {link}: ")
                self.assert_found(check_docs, "docs/a.md", f"[a `b` [c]]({link})\n", words)
                self.assert_found(check_docs, "docs/a.md", f"[text]: {link}\n", words)
        self.assert_found(check_docs, "CHANGELOG.md", "[text](docs/none.md)\n", "no such file")
        self.assert_clean(check_docs, "docs/a.md", "`[text](b.md)`\n\n```\n[text](b.md)\n```\n")

    def test_a_page_that_a_source_names_must_be_there(self):
        self.write("docs/how-to/b.md", "")
        self.assert_clean(check_docs, "server/a.cc", '"see docs/how-to/b.md"\n')
        for name in ("server/a.cc", "tests/ops/a.py", "dashboards/a.json", "deploy/kubernetes/a.yaml"):
            self.assert_found(check_docs, name, "\n# see docs/b.md\n", f"{name}:2: docs/b.md: ")
        self.assert_clean(check_docs, "server/a.cc", "// docs/b.md  lint-ok: an example\n")

    def test_a_benchmark_is_registered_and_a_page_names_it(self):
        self.write("tests/bench/new.py", 'if __name__ == "__main__":\n    pass\n')
        self.write("tests/bench/part.py", "")
        self.write("tests/bench/bench.cmake", "centroid_bench_script(other.py ARGS)\n")
        self.assert_found(check_docs, "docs/internals/benchmarks.md", "`new.py BIN`\n", "bench.cmake: new.py is not registered")
        self.write("tests/bench/bench.cmake", "centroid_bench_script(new.py ARGS)\n")
        self.assert_clean(check_docs, "docs/internals/benchmarks.md", "`new.py BIN`\n")
        self.assert_found(check_docs, "docs/internals/benchmarks.md", "`a` and new.py, `renew.py`\n", "new.py is not named")

    def test_pages_that_scripts_make(self):
        """Those of this repository are as their scripts make them; a changed source is noticed."""
        for name in ("docs/reference/events.md", "docs/reference/make_events.py"):
            self.write(name, (ROOT / name).read_text(encoding="utf-8"))
        for folder in ("common", "transport", "server", "worker", "client"):
            for path in (ROOT / folder).rglob("*"):
                if path.suffix in (".h", ".cc", ".cu", ".cuh"):
                    self.write(path.relative_to(ROOT), path.read_text(encoding="utf-8"))
        root = pathlib.Path(self.folder.name)
        self.assertEqual(list(check_docs.made_findings(root)), [])
        self.write("server/new.cc", 'void f() { log::warn("thing.happened", {{"why", 1}}); }\n')
        self.assertIn("docs/reference/events.md is not what the sources say", *check_docs.made_findings(root))
        subprocess.run([sys.executable, root / "docs/reference/make_events.py", root], check=True)
        self.assertIn("\n`thing.happened` | `why`\n", (root / "docs/reference/events.md").read_text(encoding="utf-8"))
        self.assertEqual(list(check_docs.made_findings(root)), [])


if __name__ == "__main__":
    unittest.main()
