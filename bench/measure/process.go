package measure

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// measureMemory returns the number of goroutines and the bytes in use, after garbage
// was collected and connections have become idle.
func measureMemory() Values {
	var m runtime.MemStats
	for range 6 { // each collection at most halves the stacks that are too large
		time.Sleep(100 * time.Millisecond)
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return Values{
		"goroutines":  float64(runtime.NumGoroutine()),
		"heap_bytes":  float64(m.HeapAlloc),
		"stack_bytes": float64(m.StackInuse),
	}
}

// processorTime returns the processor time that this process has used.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0 // never on Linux
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// processorTimeOf returns the seconds of processor time that a process has used.
func processorTimeOf(pid int) float64 {
	// The second field, a name in parentheses, may contain spaces. The 14th and 15th are user and system time in 1/100 s.
	_, fields, _ := strings.Cut(procFile(pid, "stat"), ") ")
	return (field(fields, 14-3) + field(fields, 15-3)) / 100
}

// residentOf returns the bytes of memory that a process has.
func residentOf(pid int) float64 {
	return field(procFile(pid, "statm"), 1) * float64(os.Getpagesize())
}

func procFile(pid int, name string) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	if err != nil {
		return "" // its fields are no numbers
	}
	return string(text)
}

// field returns the i-th field of text, or NaN.
func field(text string, i int) float64 {
	if fields := strings.Fields(text); i < len(fields) {
		if v, err := strconv.ParseFloat(fields[i], 64); err == nil {
			return v
		}
	}
	return math.NaN()
}
