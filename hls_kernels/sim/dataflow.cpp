#include "dataflow.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "dataflow_fibre.hpp"

namespace ecorl {
namespace dataflow {

namespace {

/// Thrown in a paused process of a region that has ended otherwise, to clear its stack.
struct cancelled {};

/// A process in its FIFO as the one that waits, for as long as it does.
class Waiting {
  public:
    Waiting(Process*& slot, Process* process) : slot_(slot) { slot = process; }
    ~Waiting() { slot_ = nullptr; }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

  private:
    Process*& slot_;
};

std::atomic<std::int64_t> n_deadlocks{0}, n_leftovers{0};

std::atomic<std::int64_t> depth_limit{0};

std::size_t limited(std::size_t depth) {
    const auto limit = static_cast<std::size_t>(depth_limit.load(std::memory_order_relaxed));
    return limit > 0 ? std::min(depth, limit) : depth;
}

std::mutex report_lock;
std::string& report() {
    static std::string text;
    return text;
}

}  // namespace

void throw_fault(std::atomic<std::int64_t>& count, const std::string& text) {
    count.fetch_add(1, std::memory_order_relaxed);
    {
        const std::lock_guard<std::mutex> guard(report_lock);
        report() = text;
    }
    throw fault(text);
}

/// A process: its fibre and what it waits for.
class Process {
  public:
    Process(std::string name, Region& region, std::function<void()> body)
        : name_(std::move(name)),
          region_(region),
          body_(std::move(body)),
          fibre_([this] { work(); }) {}

    /// Go on until it waits or ends.
    void go_on();
    /// Clear its stack, unless it has ended.
    void cancel();
    /// Called by the process itself: pause until `wake`.
    void wait_for(const char* what, const char* fifo, const Region* inner);
    void wake();
    bool has_ended() const { return fibre_.has_ended(); }
    const std::string& name() const { return name_; }

    /// What it waits for, and the region within it.
    void describe(std::string& text, int level) const;

    fifo_list fifos;  ///< made by the process, in no region

  private:
    void work();

    const std::string name_;
    Region& region_;
    std::function<void()> body_;
    Fibre fibre_;
    const char* waits_to_ = nullptr;
    const char* fifo_ = "";
    const Region* inner_ = nullptr;
    bool is_cancelled_ = false;
};

namespace {

/// Processes of a host thread.
struct Scheduler {
    fifo_list fifos;             ///< made outside of processes, in no region
    std::deque<Process*> ready;  ///< in the order in which they became so
    Process* running = nullptr;
};

Scheduler& scheduler() {
    static thread_local Scheduler own;
    return own;
}

fifo_list& present_fifos() {
    Scheduler& own = scheduler();
    return own.running != nullptr ? own.running->fifos : own.fifos;
}

}  // namespace

// ---- processes ------------------------------------------------------------------------------

void Process::go_on() {
    Scheduler& own = scheduler();
    Process* const before = own.running;
    own.running = this;
    fibre_.resume();
    own.running = before;
}

void Process::cancel() {
    is_cancelled_ = true;
    if (fibre_.has_begun() && !fibre_.has_ended()) go_on();
}

void Process::work() {
    try {
        body_();
    } catch (const cancelled&) {
        return;
    } catch (...) {
        if (region_.error_ == nullptr) region_.error_ = std::current_exception();
    }
    region_.ended();
}

void Process::wait_for(const char* what, const char* fifo, const Region* inner) {
    if (is_cancelled_) throw cancelled();
    waits_to_ = what;
    fifo_ = fifo;
    inner_ = inner;
    fibre_.pause();
    waits_to_ = nullptr;
    inner_ = nullptr;
    if (is_cancelled_) throw cancelled();
}

void Process::wake() {
    scheduler().ready.push_back(this);
}

void Process::describe(std::string& text, int level) const {
    text += "\n" + std::string(2 * level, ' ') + name_ + " ";
    if (fibre_.has_ended()) {
        text += "has ended";
    } else if (inner_ != nullptr) {
        inner_->describe(text += "runs ", level + 1);
    } else {
        text += std::string(waits_to_ != nullptr ? waits_to_ : "has not begun") + fifo_;
    }
}

// ---- FIFOs ----------------------------------------------------------------------------------

Fifo::Fifo(const char* name, std::size_t depth) : name_(name), depth_(limited(depth)) {
    present_fifos().add(*this);
}

Fifo::~Fifo() {
    if (home_ != nullptr) home_->remove(*this);
}

void Fifo::await_item() {
    Process* const self = scheduler().running;
    if (self == nullptr) throw std::underflow_error(std::string("read of empty stream ") + name_);
    if (reader_ != nullptr)
        throw std::logic_error(std::string("two processes read stream ") + name_);
    while (items_ == 0) {
        const Waiting waiting(reader_, self);
        self->wait_for("reads empty FIFO ", name_, nullptr);
    }
}

void Fifo::await_room() {
    Process* const self = scheduler().running;
    if (self == nullptr) return;
    if (writer_ != nullptr)
        throw std::logic_error(std::string("two processes write stream ") + name_);
    while (is_full()) {
        const Waiting waiting(writer_, self);
        self->wait_for("writes full FIFO ", name_, nullptr);
    }
}

void Fifo::wake(Process*& waiting) {
    waiting->wake();
    waiting = nullptr;
}

void fifo_list::add(Fifo& fifo) {
    fifos.push_back(&fifo);
    fifo.home_ = this;
}

void fifo_list::remove(Fifo& fifo) {
    fifos.erase(std::find(fifos.begin(), fifos.end(), &fifo));
    fifo.home_ = nullptr;
}

fifo_list::~fifo_list() {
    for (Fifo* const fifo : fifos) fifo->home_ = nullptr;
}

// ---- regions --------------------------------------------------------------------------------

Region::Region(const char* name) : name_(name) {}

Region::~Region() {
    cancel();
}

void Region::add(const char* call, std::function<void()> body) {
    const std::string text = call;
    processes_.emplace_back(new Process(text.substr(0, text.find('(')), *this, std::move(body)));
}

void Region::run() {
    // The region's own FIFOs are those that were made beside it and are empty now.
    const std::vector<Fifo*> made = present_fifos().fifos;
    for (Fifo* const fifo : made) {
        if (fifo->items_ > 0) continue;
        fifo->home_->remove(*fifo);
        fifos_.add(*fifo);
    }
    for (const auto& process : processes_) process->wake();
    run_all();
    if (error_ != nullptr) {
        cancel();
        std::rethrow_exception(error_);
    }
    check_leftovers();
}

/// Until all processes have ended or one has thrown.
void Region::run_all() {
    Scheduler& own = scheduler();
    if (own.running != nullptr) {  // the outermost region's loop runs all
        waiting_ = own.running;
        while (!is_over()) waiting_->wait_for("", "", this);
        waiting_ = nullptr;
        return;
    }
    while (!is_over()) {
        if (own.ready.empty()) throw_fault(n_deadlocks, standstill());
        Process* const next = own.ready.front();
        own.ready.pop_front();
        next->go_on();
    }
}

void Region::ended() {
    ++n_ended_;
    if (is_over() && waiting_ != nullptr) waiting_->wake();
}

/// End all processes that have not ended, those of regions within them first.
void Region::cancel() {
    std::deque<Process*>& ready = scheduler().ready;
    for (const auto& process : processes_) {
        process->cancel();
        ready.erase(std::remove(ready.begin(), ready.end(), process.get()), ready.end());
    }
}

std::string Region::standstill() const {
    std::string text = std::string("region ") + name_ + ": no process can go on";
    std::string rest;
    describe(rest, 1);
    return text + rest.substr(rest.find('\n'));
}

/// Name, processes and FIFOs, as "name items/depth".
void Region::describe(std::string& text, int level) const {
    text += std::string("region ") + name_;
    for (const auto& process : processes_) process->describe(text, level);
    text += "\n" + std::string(2 * level, ' ') + "FIFOs:";
    const char* comma = " ";
    for (const Fifo* const fifo : fifos_.fifos) {
        text += comma + std::string(fifo->name_) + " " + std::to_string(fifo->items_) + "/" +
                std::to_string(fifo->depth_);
        if (fifo->is_empty()) text += " (empty)";
        if (fifo->is_full()) text += " (full)";
        comma = ", ";
    }
}

void Region::check_leftovers() const {
    std::string text;
    for (const Fifo* const fifo : fifos_.fifos) {
        if (fifo->items_ == 0) continue;
        text += (text.empty() ? "" : ", ") + std::string(fifo->name_) + " " +
                std::to_string(fifo->items_) + "/" + std::to_string(fifo->depth_);
    }
    if (text.empty()) return;
    throw_fault(n_leftovers,
                std::string("region ") + name_ + ": nobody read what is left in " + text);
}

std::string last_report() {
    const std::lock_guard<std::mutex> guard(report_lock);
    return report();
}

}  // namespace dataflow
}  // namespace ecorl

using namespace ecorl::dataflow;

extern "C" {

std::int64_t dataflow_deadlocks() {
    return n_deadlocks.load(std::memory_order_relaxed);
}

std::int64_t dataflow_leftovers() {
    return n_leftovers.load(std::memory_order_relaxed);
}

void dataflow_set_depth(std::int64_t n) {
    depth_limit.store(std::max<std::int64_t>(n, 0), std::memory_order_relaxed);
}

std::int64_t dataflow_report(char* out, std::int64_t size) {
    const std::string text = last_report();
    if (size > 0) {
        const std::size_t n = std::min(text.size(), static_cast<std::size_t>(size - 1));
        std::memcpy(out, text.data(), n);
        out[n] = 0;
    }
    return static_cast<std::int64_t>(text.size());
}
}
