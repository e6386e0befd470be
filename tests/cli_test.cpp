// The binary `tessera` from outside: exit codes, exactly one line on stderr for bad input, nothing left behind on
// failure, fixed JSON keys, and results on files of every element type and layout.
#include "cli_fixture.hpp"

namespace tessera::cli {
namespace {

class Cli : public CliFixture {};

TEST_F(Cli, HelpAndVersionAreNoErrors) {
  for (const char* arguments :
       {"--help", "--version", "run --help", "check --help", "bench --help", "explain --help", "devices --help"}) {
    const Result result = tessera(arguments);
    EXPECT_EQ(result.exit_code, 0) << arguments;
    EXPECT_EQ(result.err, "") << arguments;
    EXPECT_NE(result.out, "") << arguments;
  }
}

TEST_F(Cli, AnUnknownLogIsNamedOnceAndIgnored) {
  for (const auto& [value, line] :
       {std::pair("bogus", "tessera: TESSERA_LOG=bogus: unknown and ignored, expected plan\n"),
        std::pair("PLAN", "tessera: TESSERA_LOG=PLAN: unknown and ignored, expected plan\n"), std::pair("", "")}) {
    const std::string command = "cd " + folder_ + " && TESSERA_LOG='" + value + "' " + binary() +
                                " check 'f32 sq16 d16' 'f32 sq8 d16' >.out 2>.err";
    EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 0) << value;
    EXPECT_EQ(content(path(".err")), line);
  }
}

TEST_F(Cli, BadArgumentsAreOneLine) {
  expect_bad_input("", "no command, expected run, check, bench, explain or devices");
  expect_bad_input("frobnicate", "frobnicate: unknown command");
  expect_bad_input("--frobnicate", "--frobnicate: unknown option");
  expect_bad_input("run --frobnicate", "--frobnicate");
  expect_bad_input("check", "no problem");
  expect_bad_input("bench", "no problem");
  expect_bad_input("bench --rounds 0 'f32 sq16 d16'", "--rounds 0: expected 1 to 1000");
  expect_bad_input("bench --rounds x 'f32 sq16 d16'", "--rounds = x, expected a number");
  expect_bad_input("bench --seconds -1 'f32 sq16 d16'", "--seconds -1: expected above 0");
  expect_bad_input("bench --out no/such/folder.json 'f32 sq16 d16'", "--out no/such/folder.json: cannot be written");
  expect_bad_input("explain", "problem");
  for (const char* problem : {"f32 sq16 d16 cpu", "cpu f32 sq16 d16", "f32\tcpu\nsq16 d16"})
    for (const char* device : {"h200", "h100", "a100", "rtx4090", "b200"})
      expect_bad_input(std::string("explain '") + problem + "' --device " + device,
                       std::string("--device ") + device + ": a GPU, but the problem says cpu");
  EXPECT_EQ(tessera("explain 'bf16 sq16 d64 cuda' --device h200").exit_code,
            tessera("explain 'bf16 sq16 d64' --device h200").exit_code);
  expect_bad_input("explain 'f32 sq16 d16' --device vax", "--device vax: unknown, expected h200");
}

TEST_F(Cli, BadProblemsAreOneLine) {
  for (const char* command : {"check", "bench", "explain"}) {
    expect_bad_input(std::string(command) + " 'f32 sq16 d16 zebra'", "zebra");
    expect_bad_input(std::string(command) + " 'f32 sq16'", "d is missing");
    expect_bad_input(std::string(command) + " 'f32 sq16 d-3'", "d-3");
    expect_bad_input(std::string(command) + " 'f32 sq99999999999999999999 d8'", "sq99999999999999999999");
    expect_bad_input(std::string(command) + " 'f32 hq3 hkv2 sq16 d16'", "heads_q is 3");
    expect_bad_input(std::string(command) + " \"$(printf 'f32 sq16 d16 new\\nline\\tx')\"", "new");
  }
  // A later bad problem stops an earlier good one from running.
  const Result result = tessera("check 'f32 sq16 d16' zebra");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
}

TEST_F(Cli, RefusalsSayWhy) {
  for (const char* command : {"check", "bench", "explain"}) {
    const Result result = tessera(std::string(command) + " 'f32 sq16 d16 kernel=cpu.none'");
    EXPECT_EQ(result.exit_code, 3) << command;
    EXPECT_NE(result.out.find("cpu.none"), std::string::npos) << result.out;
  }
  const Result json = tessera("check --json 'f64 sq16 d16 kernel=cpu.none'");
  EXPECT_EQ(json.exit_code, 3);
  const Json line = Json::parse(json.out);
  EXPECT_EQ(line["status"], "refused");
  EXPECT_TRUE(line["reason"].is_string());
  EXPECT_TRUE(line["passed"].is_null());
  // Of a good and a refused problem the refusal shows in the exit code; both are reported.
  const Result both = tessera("check --json 'f32 sq16 d16' 'f32 sq16 d16 kernel=cpu.none'");
  EXPECT_EQ(both.exit_code, 3);
  EXPECT_EQ(std::count(both.out.begin(), both.out.end(), '\n'), 2);
}

TEST_F(Cli, CudaWithoutADeviceAsksForAName) {
  const char* reason = nullptr;
  if (core::cuda_info(0, &reason) != nullptr) GTEST_SKIP() << "this machine has a CUDA device";
  const Result result = tessera("explain 'bf16 sq128 d64 cuda'");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_NE(result.out.find("no CUDA device; name one with --device"), std::string::npos) << result.out;
  EXPECT_EQ(tessera("check 'bf16 sq128 d64 cuda'").exit_code, 3);
  EXPECT_EQ(tessera("bench 'bf16 sq128 d64 cuda'").exit_code, 3);
  const Result run = tessera("run cuda --q q.npy --k k.npy --v v.npy --out o.npy");
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_NE(run.err.find("device is 0"), std::string::npos) << run.err;
  EXPECT_FALSE(std::filesystem::exists(path("o.npy")));
}

TEST_F(Cli, CheckPrintsFixedKeys) {
  const Result result = tessera("check --json 'f32 hq2 sq33 d16 causal kernel=*'");
  EXPECT_EQ(result.exit_code, 0) << result.out;
  EXPECT_EQ(result.err, "");
  std::istringstream lines(result.out);
  int ran = 0;
  for (std::string line; std::getline(lines, line);) {
    const Json object = Json::parse(line);
    std::string keys;
    for (const auto& [key, value] : object.items()) keys += key + ' ';
    EXPECT_EQ(keys, "problem kernel status reason tensor max_abs_error rms_error tolerance passed ");
    if (object["status"] != "ran") continue;
    ++ran;
    EXPECT_EQ(object["passed"], true) << line;
    EXPECT_LE(object["max_abs_error"].get<double>(), object["tolerance"].get<double>());
  }
  EXPECT_GE(ran, 3);  // portable, reference and textbook run anywhere
}

TEST_F(Cli, BenchPrintsFixedKeysAndTheResultFile) {
  const Result result = tessera(
      "bench --json --seconds 0.02 --rounds 2 --out result.json 'f32 hq2 sq64 d16 threads=1 "
      "kernel=cpu.portable.forward'");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const Json ours = Json::parse(result.out.substr(0, result.out.find('\n')));
  std::string keys;
  for (const auto& [key, value] : ours.items()) keys += key + ' ';
  EXPECT_EQ(
      keys,
      "problem kernel status reason baseline seconds_median seconds_min seconds_max flops bytes tflops gbytes_per_s "
      "bound_fraction speedup_over_textbook workspace_bytes plan_seconds host_seconds peers device ");
  EXPECT_EQ(ours["kernel"], "cpu.portable.forward");
  EXPECT_EQ(ours["flops"], 4 * 2 * 64 * 64 * 16);
  EXPECT_LE(ours["seconds_min"].get<double>(), ours["seconds_median"].get<double>());
  EXPECT_LE(ours["seconds_median"].get<double>(), ours["seconds_max"].get<double>());
  EXPECT_GT(ours["bound_fraction"].get<double>(), 0);
  EXPECT_LT(ours["plan_seconds"].get<double>(), 1e-3);

  const Json file = Json::parse(content(path("result.json")));
  keys.clear();
  for (const auto& [key, value] : file.items()) keys += key + ' ';
  EXPECT_EQ(keys, "device host driver clocks versions commit kernel_sources_sha256 date rows ");
  EXPECT_EQ(file["kernel_sources_sha256"].get<std::string>().size(), 64u);
  EXPECT_EQ(file["rows"].size(), 2u);
  EXPECT_EQ(file["rows"][0], ours);
  EXPECT_EQ(file["rows"][1]["baseline"], true);
}

TEST_F(Cli, DevicesAndExplainAreJsonOnRequest) {
  EXPECT_TRUE(Json::accept(tessera("devices --json").out));
  EXPECT_TRUE(Json::accept(tessera("explain --json 'f32 sq16 d16'").out));
  EXPECT_TRUE(Json::accept(tessera("explain --json 'f32 sq16 d16 kernel=cpu.none'").out));
  EXPECT_EQ(tessera("explain --json 'f32 sq16 d16'").exit_code, 0);
  EXPECT_NE(tessera("devices").out.find("cpu.portable.forward"), std::string::npos);
}

// Bytes that are no UTF-8 become U+FFFD, wherever a name or a pin of the environment shows.
TEST_F(Cli, JsonIsValidWhateverUsersType) {
  for (const char* bytes : {"\\377", "x\\300\\257", "\\342\\202", "\\355\\240\\200z"}) {
    const std::string pin = std::string("\"$(printf 'f32 sq16 d16 kernel=") + bytes + "')\"";
    const std::string variable = std::string("TESSERA_KERNEL=\"$(printf '") + bytes + "')\" ";
    for (const std::string& command :
         {std::string("check --json "), std::string("explain --json "), std::string("bench --json --out r.json ")}) {
      for (const std::string& line :
           {binary() + " " + command + pin, variable + binary() + " " + command + "'f32 sq16 d16'"}) {
        const int status = std::system(("cd " + folder_ + " && " + line + " >.json 2>.err").c_str());
        EXPECT_EQ(WEXITSTATUS(status), 3) << line;
        EXPECT_TRUE(Json::accept(content(path(".json")))) << line << "\n" << content(path(".json"));
        EXPECT_NE(content(path(".json")).find("ufffd"), std::string::npos) << line;
        EXPECT_EQ(content(path(".err")), "") << line;
      }
    }
    EXPECT_TRUE(Json::accept(content(path("r.json"))));
    const std::string words = std::string("\"$(printf 'kernel=") + bytes + "')\" " + kArrays;
    const Result files = tessera("check --json " + words);
    EXPECT_EQ(files.exit_code, 3) << files.err;
    EXPECT_TRUE(Json::accept(files.out)) << files.out;
  }
}

TEST_F(Cli, RunWritesNpy) {
  const Result result = tessera("run causal scale=0.3 " + kArrays + "--out o.npy --lse lse.npy");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_NE(result.out.find("fwd f32 b1 hq2 hkv2 sq20 sk20 d8 causal scale=0.3 cpu"), std::string::npos) << result.out;
  const std::string o = content(path("o.npy")), lse = content(path("lse.npy"));
  const TensorView o_view = read_npy(std::as_bytes(std::span(o.data(), o.size())), "o");
  EXPECT_EQ(o_view.shape, (std::vector<int64_t>{1, 20, 2, 8}));
  const TensorView lse_view = read_npy(std::as_bytes(std::span(lse.data(), lse.size())), "lse");
  EXPECT_EQ(lse_view.shape, (std::vector<int64_t>{1, 2, 20}));
  // Row 0 sees key 0 alone: o is v.
  const std::string v = content(path("v.npy"));
  const TensorView v_view = read_npy(std::as_bytes(std::span(v.data(), v.size())), "v");
  for (int64_t i = 0; i < 16; ++i)
    EXPECT_FLOAT_EQ(static_cast<float>(baselines::load_element(TESSERA_F32, o_view.data, i)),
                    static_cast<float>(baselines::load_element(TESSERA_F32, v_view.data, i)));
}

TEST_F(Cli, ReportSetsTheTextbookBeside) {
  const Result result = tessera("run causal " + kArrays + "--report");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("tessera"), std::string::npos);
  EXPECT_NE(result.out.find("error vs float64"), std::string::npos);
  EXPECT_NE(result.out.find("within the tolerance"), std::string::npos);
}

TEST_F(Cli, UnwritableOutputsLeaveNothing) {
  expect_bad_input("run " + kArrays + "--out no/such/o.npy", "--out no/such/o.npy: cannot be written (No such file");
  expect_bad_input("run " + kArrays + "--out /dev/full",
                   "--out /dev/full: cannot be written (No space left on device)");
  expect_bad_input("run " + kArrays + "--out o.npy --lse no/such/lse.npy", "--lse no/such/lse.npy: cannot be written");
  expect_bad_input("run " + kArrays + "--out o.npy --lse /dev/full", "--lse /dev/full: cannot be written");
  expect_bad_input("run " + kArrays + "--out o.npy --lse o.npy", "--lse o.npy: is --out as well");
  expect_bad_input("run " + kArrays + "--out q.npy", "is an input as well");
  expect_bad_input("run " + kArrays + "--out o.safetensors", "ends in .npy");
  expect_bad_input("run " + kArrays, "--out: absent");
}

TEST_F(Cli, WordsThatContradictTheTensorsAreBadInput) {
  const std::string rest = " " + kArrays + "--out o.npy";
  expect_bad_input("run f16" + rest, "q: the words say f16, the tensor is f32");
  expect_bad_input("run sq21" + rest, "sq21: the tensors have 20");
  expect_bad_input("run hq4" + rest, "hq4: the tensors have 2");
  expect_bad_input("run d16" + rest, "d16: the tensors have 8");
  expect_bad_input("run b2" + rest, "b2: the tensors have 1");
  expect_bad_input("run packed" + rest, "packed: tensor cu_seqlens_q absent");
  expect_bad_input("run paged=16" + rest, "tensor page_table absent");
  expect_bad_input("run alibi" + rest, "alibi: tensor alibi_slopes absent");
  expect_bad_input("run sinks" + rest, "sinks: tensor sinks absent");
  expect_bad_input("run bias" + rest, "bias: tensor bias absent");
  expect_bad_input("run lens=longtail" + rest, "lens=longtail");
  expect_bad_input("run bwd" + rest, "d_o: tensor absent");
  expect_bad_input("run zebra" + rest, "zebra");
  EXPECT_EQ(tessera("run f32 b1 hq2 hkv2 sq20 sk20 d8 dv8 fwd cpu" + rest).exit_code, 0);
}

TEST_F(Cli, BadFilesAreOneLine) {
  write_file(path("short.npy"), content(path("q.npy")).substr(0, 200));
  expect_bad_input("run --q short.npy --k k.npy --v v.npy --out o.npy", "--q short.npy:");
  expect_bad_input("run --q absent.npy --k k.npy --v v.npy --out o.npy", "--q absent.npy: No such file");
  expect_bad_input("run --q . --k k.npy --v v.npy --out o.npy", "--q .: is a directory");
  expect_bad_input("run --q q.npy --k k.npy --out o.npy", "--v: absent");
  for (const char* device : {"/dev/zero", "/dev/null", "/dev/urandom"}) {
    expect_bad_input(std::string("check --q q.npy --k k.npy --v ") + device, "is a device, expected a file or a pipe");
    expect_bad_input(std::string("run --out o.safetensors --input ") + device, "is a device, expected a file");
  }
  expect_bad_input("run --input absent.safetensors --out o.safetensors", "--input absent.safetensors: No such file");
  expect_bad_input("run --input q.npy --out o.safetensors", "--input q.npy: .safetensors header");
  const FileTensor half = random_tensor("k", "F16", {1, 20, 2, 8}, 1);
  write_file(path("half.npy"), npy_header("F16", half.shape) + raw_bytes(half));
  const std::string mixed = "run --out o.npy ";
  expect_bad_input(mixed + "--q q.npy --k half.npy --v v.npy", "q is f32, k is f16, expected one element type");
  expect_bad_input(mixed + "--q half.npy --k k.npy --v v.npy", "q is f16, k is f32, expected one element type");
  expect_bad_input(mixed + "--q q.npy --k k.npy --v half.npy", "k is f32, v is f16, expected one element type");
  expect_bad_input(mixed + "causal --q q.npy --k half.npy --v half.npy", "q is f32, k is f16");
  expect_bad_input(mixed + "f32 --q q.npy --k half.npy --v v.npy", "k: the words say f32, the tensor is f16");
  expect_bad_input(mixed + "f32 --q half.npy --k k.npy --v v.npy", "q: the words say f32, the tensor is f16");
  const FileTensor wide = random_tensor("k", "F32", {1, 20, 2, 16}, 1);
  write_file(path("wide.npy"), npy_header("F32", wide.shape) + raw_bytes(wide));
  expect_bad_input("run --q q.npy --k wide.npy --v v.npy --out o.npy", "head_dim 16, expected 8");
  const FileTensor flat = random_tensor("k", "F32", {320}, 1);
  write_file(path("flat.npy"), npy_header("F32", flat.shape) + raw_bytes(flat));
  expect_bad_input("run --q flat.npy --k k.npy --v v.npy --out o.npy",
                   "shape [320], expected [batch, seqlen, heads, dim]");
}

TEST_F(Cli, BadTensorsAreOneLine) {
  const std::string run = "run --input in.safetensors --out o.safetensors";
  const auto with = [&](FileTensor more) {
    std::vector<FileTensor> tensors = operands("F32", {2, 6, 2, 8}, {2, 9, 2, 8});
    tensors.push_back(std::move(more));
    write_input(tensors);
  };
  with(random_tensor("mystery", "F32", {2}, 1));
  expect_bad_input(run, "unknown tensor \"mystery\"");
  with(random_tensor("new\nline", "F32", {2}, 1));
  expect_bad_input(run, "unknown tensor");
  with(int_tensor("seqused_k", {3}, {1, 2, 3}));
  expect_bad_input(run, "seqused_k: shape [3], expected [2]");
  with(int_tensor("seqused_k", {2}, {1, 10}));
  expect_bad_input(run, "seqused_k");
  with(random_tensor("seqused_k", "F32", {2}, 1));
  expect_bad_input(run, "seqused_k: dtype F32, expected I32");
  with(random_tensor("sinks", "F32", {3}, 1));
  expect_bad_input(run, "sinks: shape [3], expected [2]");
  with(random_tensor("bias", "F32", {2, 2, 6, 8}, 1));
  expect_bad_input(run, "bias: shape [2, 2, 6, 8], expected [2, 2, 6, 9]");
  with(random_tensor("d_o", "F32", {2, 6, 2, 8}, 1));
  expect_bad_input(run, "d_o: tensor given, expected only with bwd");
  with(int_tensor("cu_seqlens_q", {3}, {0, 3, 6}));
  expect_bad_input(run, "q: shape [2, 6, 2, 8], expected [total, heads, dim]");
  // Extents whose products pass 2^63 need no data where another extent is 0.
  const auto paged = [&](const std::vector<int64_t>& pages, int64_t batch, int64_t columns) {
    std::vector<FileTensor> tensors = operands("F32", {batch, 6, 2, 8}, pages);
    const size_t entries = batch == 0 ? 0 : static_cast<size_t>(batch * columns);
    tensors.push_back(int_tensor("page_table", {batch, columns}, std::vector<double>(entries, 0)));
    tensors.push_back(int_tensor("seqused_k", {batch}, std::vector<double>(static_cast<size_t>(batch), 1)));
    write_input(tensors);
  };
  paged({3, 0, 2, 8}, 2, 2);
  expect_bad_input(run, "k: shape [3, 0, 2, 8], expected pages of 1 slot or more");
  for (const int64_t columns : {int64_t{1} << 31, int64_t{1} << 62, int64_t{INT64_MAX}}) {
    paged({1, 16, 2, 8}, 0, columns);
    expect_bad_input(run, "page_table: shape [0, " + std::to_string(columns) + "], expected extents below 2^31");
  }
  std::vector<FileTensor> empty = operands("F32", {0, INT32_MAX, INT32_MAX, 8}, {0, INT32_MAX, INT32_MAX, 8});
  empty.push_back({"bias", "F32", {0, INT32_MAX, INT32_MAX, INT32_MAX}, {}});
  write_input(empty);
  expect_bad_input(run, "bias: shape [0, 2147483647, 2147483647, 2147483647], expected strides below 2^63");
  std::vector<FileTensor> packed = operands("F32", {10, 2, 8}, {12, 2, 8});
  packed.push_back(int_tensor("cu_seqlens_q", {3}, {0, 6, 4}));
  packed.push_back(int_tensor("cu_seqlens_k", {3}, {0, 5, 12}));
  write_input(packed);
  expect_bad_input(run, "cu_seqlens_q");
  packed[3] = int_tensor("cu_seqlens_q", {3}, {0, 6, 11});
  write_input(packed);
  expect_bad_input(run, "cu_seqlens_q");
}

// `run` and `check` on one file; returns what was written.
TEST_F(Cli, RunsEveryElementType) {
  for (const char* dtype : {"F64", "F32", "F16", "BF16"}) {
    write_input(operands(dtype, {2, 7, 4, 8}, {2, 13, 2, 8}));
    const Result run = tessera("run causal --input in.safetensors --out o.safetensors");
    ASSERT_EQ(run.exit_code, 0) << dtype << run.err;
    const auto out = read_output(path("o.safetensors"));
    EXPECT_EQ(out.at("o").dtype, dtype);
    EXPECT_EQ(out.at("o").shape, (std::vector<int64_t>{2, 7, 4, 8}));
    EXPECT_EQ(out.at("lse").shape, (std::vector<int64_t>{2, 4, 7}));
    EXPECT_EQ(out.at("lse").dtype, std::string(dtype) == "F64" ? "F64" : "F32");
    const Result check = tessera("check causal --json --input in.safetensors");
    EXPECT_EQ(check.exit_code, 0) << check.out << check.err;
    EXPECT_EQ(Json::parse(check.out)["passed"], true);
  }
}

// The same sequences dense, packed, paged, and with heads before rows give the same numbers.
TEST_F(Cli, RunsEveryLayout) {
  constexpr int64_t kBatch = 2, kRows = 6, kKeys = 8, kHeads = 2, kDim = 8, kPage = 4;
  const std::vector<FileTensor> dense = operands("F32", {kBatch, kRows, kHeads, kDim}, {kBatch, kKeys, kHeads, kDim});
  const auto o_of = [&](const std::vector<FileTensor>& tensors, const std::string& words) {
    write_input(tensors);
    const Result run =
        tessera("run causal 'kernel=*.forward' " + words + " --input in.safetensors --out o.safetensors");
    EXPECT_EQ(run.exit_code, 0) << words << run.err;
    const Result check = tessera("check causal " + words + " --input in.safetensors");
    EXPECT_EQ(check.exit_code, 0) << words << check.out << check.err;
    return run.exit_code == 0 ? read_output(path("o.safetensors")).at("o") : FileTensor{};
  };
  const std::vector<double> expected = o_of(dense, "").values;

  std::vector<FileTensor> packed = dense;
  packed[0].shape = {kBatch * kRows, kHeads, kDim};
  packed[1].shape = packed[2].shape = {kBatch * kKeys, kHeads, kDim};
  packed.push_back(int_tensor("cu_seqlens_q", {3}, {0, kRows, 2 * kRows}));
  packed.push_back(int_tensor("cu_seqlens_k", {3}, {0, kKeys, 2 * kKeys}));
  const FileTensor packed_o = o_of(packed, "");
  EXPECT_EQ(packed_o.shape, (std::vector<int64_t>{kBatch * kRows, kHeads, kDim}));
  EXPECT_EQ(packed_o.values, expected);

  std::vector<FileTensor> paged = dense;
  paged[1].shape = paged[2].shape = {kBatch * kKeys / kPage, kPage, kHeads, kDim};
  paged.push_back(int_tensor("page_table", {2, 2}, {0, 1, 2, 3}));
  paged.push_back(int_tensor("seqused_k", {2}, {kKeys, kKeys}));
  EXPECT_EQ(o_of(paged, "").values, expected);
  EXPECT_EQ(o_of(paged, "paged=4").values, expected);

  std::vector<FileTensor> transposed = dense;
  for (FileTensor& tensor : transposed) {
    const int64_t rows = tensor.shape[1];
    const std::vector<double> before = tensor.values;
    for (int64_t b = 0; b < kBatch; ++b)
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t h = 0; h < kHeads; ++h)
          for (int64_t c = 0; c < kDim; ++c)
            tensor.values[static_cast<size_t>(((b * kHeads + h) * rows + i) * kDim + c)] =
                before[static_cast<size_t>(((b * rows + i) * kHeads + h) * kDim + c)];
    std::swap(tensor.shape[1], tensor.shape[2]);
  }
  const FileTensor heads_first = o_of(transposed, "layout=bhsd");
  ASSERT_EQ(heads_first.values.size(), expected.size());
  EXPECT_EQ(heads_first.shape, (std::vector<int64_t>{kBatch, kHeads, kRows, kDim}));
  EXPECT_EQ(heads_first.values[kDim], expected[kHeads * kDim]);  // head 0, row 1
}

TEST_F(Cli, RunsWithEveryOptionalTensor) {
  std::vector<FileTensor> tensors = operands("BF16", {2, 6, 4, 8}, {2, 9, 2, 8});
  tensors.push_back(int_tensor("seqused_q", {2}, {6, 3}));
  tensors.push_back(int_tensor("seqused_k", {2}, {9, 5}));
  tensors.push_back(random_tensor("sinks", "F32", {4}, 4));
  tensors.push_back({"alibi_slopes", "F32", {2, 4}, {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8}});
  tensors.push_back(random_tensor("bias", "F32", {1, 4, 6, 9}, 5));
  tensors.push_back(random_tensor("o", "F32", {1}, 6));
  tensors.push_back(random_tensor("lse", "F32", {1}, 6));
  tensors.push_back(random_tensor("o_f64", "F64", {1}, 6));
  write_input(tensors);
  const Result check = tessera("check causal softcap=5 --json --input in.safetensors");
  EXPECT_EQ(check.exit_code, 0) << check.out << check.err;
  EXPECT_NE(check.out.find("alibi"), std::string::npos) << check.out;
  EXPECT_NE(check.out.find("sinks"), std::string::npos);
  const Result run = tessera("run causal o=f32 --input in.safetensors --out o.safetensors");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto out = read_output(path("o.safetensors"));
  EXPECT_EQ(out.at("o").dtype, "F32");
  EXPECT_EQ(out.at("o").values[(9 + 0) * 4 * 8], 0.0);  // sequence 1, row 3: past seqused_q
}

TEST_F(Cli, EmptySequencesAreNoErrors) {
  write_input(operands("F32", {2, 0, 2, 8}, {2, 5, 2, 8}));
  EXPECT_EQ(tessera("run --input in.safetensors --out o.safetensors").exit_code, 0);
  EXPECT_EQ(read_output(path("o.safetensors")).at("o").shape, (std::vector<int64_t>{2, 0, 2, 8}));
  write_input(operands("F32", {2, 3, 2, 8}, {2, 0, 2, 8}));
  EXPECT_EQ(tessera("run --input in.safetensors --out o.safetensors").exit_code, 0);
  const auto out = read_output(path("o.safetensors"));
  for (const double value : out.at("o").values) EXPECT_EQ(value, 0.0);
  for (const double value : out.at("lse").values) EXPECT_EQ(value, -INFINITY);
  EXPECT_EQ(tessera("check 'f32 b0 sq5 d8' 'f32 sq0 sk3 d8' 'f32 sq3 sk0 d8'").exit_code, 0);
}

}  // namespace
}  // namespace tessera::cli
