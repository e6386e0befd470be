// The default pool. A job lives on its caller's stack and in a list under one mutex; its task counter is atomic, so
// handing out a task costs one fetch_add. The caller works too, therefore a job always ends, even when no worker could
// be started. Idle workers spin a few microseconds (a run of small problems finds them awake), then sleep.
#include "cpu/thread_pool.hpp"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

namespace tessera::cpu {
namespace {

// About 5 microseconds of pause instructions: waking a sleeping thread costs 30 to 60.
constexpr int kSpins = 200;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

struct Job {
  void (*task)(void*, int64_t);
  void* arg;
  int64_t count;
  std::atomic<int64_t> next{0};
  int users = 0;            // workers inside run_tasks; under the pool's mutex
  Job* next_job = nullptr;  // under the pool's mutex

  bool exhausted() const { return next.load(std::memory_order_relaxed) >= count; }
  void run_tasks() {
    for (int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < count;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      task(arg, i);
    }
  }
};

class ThreadPool {
 public:
  // Workers are started by the first job, not here: a process that plans and never runs starts none.
  explicit ThreadPool(int workers) : workers_(workers) {}

  void parallel(int64_t count, void (*task)(void*, int64_t), void* arg) {
    if (count <= 0) return;
    Job job{task, arg, count};
    {
      std::lock_guard lock(mutex_);
      start_workers();
      push(&job);
    }
    const int64_t helpers = count - 1 < static_cast<int64_t>(workers_) ? count - 1 : workers_;
    for (int64_t i = 0; i < helpers; ++i) wake_.notify_one();
    job.run_tasks();
    std::unique_lock lock(mutex_);
    remove(&job);
    done_.wait(lock, [&] { return job.users == 0; });
  }

 private:
  void start_workers() {
    if (started_) return;
    started_ = true;
    for (int i = 0; i < workers_; ++i) {
      try {
        std::thread([this] { work(); }).detach();
      } catch (...) {
        return;  // the caller's own thread does what is missing
      }
    }
  }

  void push(Job* job) {
    Job** tail = &jobs_;
    while (*tail != nullptr) tail = &(*tail)->next_job;
    *tail = job;
    pending_.fetch_add(1, std::memory_order_relaxed);
  }

  void remove(Job* job) {
    for (Job** link = &jobs_; *link != nullptr; link = &(*link)->next_job) {
      if (*link != job) continue;
      *link = job->next_job;
      pending_.fetch_sub(1, std::memory_order_relaxed);
      return;
    }
  }

  Job* find_work() const {
    Job* job = jobs_;
    while (job != nullptr && job->exhausted()) job = job->next_job;
    return job;
  }

  [[noreturn]] void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      Job* job = find_work();
      if (job == nullptr) {
        lock.unlock();
        for (int i = 0; i < kSpins && pending_.load(std::memory_order_relaxed) == 0; ++i) pause_briefly();
        lock.lock();
        wake_.wait(lock, [&] { return (job = find_work()) != nullptr; });
      }
      ++job->users;
      lock.unlock();
      job->run_tasks();
      lock.lock();
      if (--job->users == 0) done_.notify_all();
    }
  }

  const int workers_;
  bool started_ = false;
  Job* jobs_ = nullptr;
  std::atomic<int> pending_{0};
  std::mutex mutex_;
  std::condition_variable wake_, done_;
};

struct DefaultPool {
  std::atomic<ThreadPool*> pool{nullptr};
  tessera_executor executor{};
};

// Never destroyed: detached workers may outlive main.
DefaultPool& instance() {
  static DefaultPool* pool = [] {
    auto* made = new DefaultPool;
    const int threads = affinity_cpus();
    made->pool = new ThreadPool(threads - 1);
    made->executor.size = sizeof(tessera_executor);
    made->executor.threads = threads;
    made->executor.context = made;
    made->executor.parallel = [](void* context, int64_t count, void (*task)(void*, int64_t), void* arg) {
      static_cast<DefaultPool*>(context)->pool.load(std::memory_order_acquire)->parallel(count, task, arg);
    };
    // A child has the parent's pool but none of its threads, and maybe a locked mutex: it gets a pool of its own.
    pthread_atfork(nullptr, nullptr,
                   [] { instance().pool.store(new ThreadPool(affinity_cpus() - 1), std::memory_order_release); });
    return made;
  }();
  return *pool;
}

}  // namespace

int32_t affinity_cpus() {
  for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) {
    cpu_set_t* set = CPU_ALLOC(cpus);
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(cpus);
    CPU_ZERO_S(bytes, set);
    const bool known = sched_getaffinity(0, bytes, set) == 0;
    const int count = known ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (known) return count > 0 ? count : 1;
  }
  const unsigned hardware = std::thread::hardware_concurrency();
  return hardware > 0 ? static_cast<int32_t>(hardware) : 1;
}

const tessera_executor& default_executor() { return instance().executor; }

}  // namespace tessera::cpu
