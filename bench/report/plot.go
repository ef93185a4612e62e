package report

import (
	"image/color"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	_ "gonum.org/v1/plot/vg/vgsvg" // writes the format
)

// plotted is a chart with one line for each series over the same points. Its scale is
// logarithmic, so equal ratios have equal distances.
type plotted struct {
	title, unit, across string
	points              []string
	series              []series
}

// A series has values; 0 means that there is no value.
type series struct {
	name   string
	values []float64
	at     []float64 // numbers of points, from 0; by default the first ones
}

// colours are distinguishable for colour-blind readers. A peer has the same in every plot.
var colours = map[string]color.RGBA{
	"floor":             {0x99, 0x99, 0x99, 0xff},
	"etcdlock":          {0xd5, 0x5e, 0x00, 0xff},
	"etcdlock, Release": {0x8c, 0x3d, 0x00, 0xff},
	"concurrency":       {0x00, 0x72, 0xb2, 0xff},
	serialized:          {0x56, 0xb4, 0xe9, 0xff},
	"zookeeper":         {0x00, 0x9e, 0x73, 0xff},
	"redsync":           {0xcc, 0x79, 0xa7, 0xff},
	"redsync, fsync":    {0xe6, 0x9f, 0x00, 0xff},
	"waiters":           {0xd5, 0x5e, 0x00, 0xff},
	"held":              {0x99, 0x99, 0x99, 0xff},
	"watched":           {0x00, 0x72, 0xb2, 0xff},
	"names":             {0x00, 0x9e, 0x73, 0xff},
	"sessions":          {0xcc, 0x79, 0xa7, 0xff},
}

// write draws the plot as SVG.
func (p plotted) write(dir, name string) error {
	drawn := plot.New()
	drawn.Title.Text, drawn.X.Label.Text, drawn.Y.Label.Text = p.title, p.across, p.unit
	drawn.Y.Scale, drawn.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	drawn.Legend.Top = true
	drawn.Add(plotter.NewGrid())
	measured := false
	for _, s := range p.series {
		var points plotter.XYs
		for i, v := range s.values {
			x := float64(i)
			if s.at != nil {
				x = s.at[i]
			}
			if v > 0 {
				points = append(points, plotter.XY{X: x, Y: v})
			}
		}
		if len(points) == 0 {
			continue
		}
		measured = true
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return err
		}
		line.Color, dots.Color = colours[s.name], colours[s.name]
		line.Width = vg.Points(1.5)
		drawn.Add(line, dots)
		drawn.Legend.Add(s.name, line, dots)
	}
	if !measured { // a logarithmic scale has no 0
		drawn.Y.Min, drawn.Y.Max = 1, 10
	}
	drawn.NominalX(p.points...)
	drawn.X.Max = float64(len(p.points)) + 0.8 // room for the legend
	return drawn.Save(8*vg.Inch, 4.2*vg.Inch, filepath.Join(dir, name+".svg"))
}
