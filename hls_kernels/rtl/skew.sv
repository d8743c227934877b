// Delay lane t by t cycles: what a cascade of DSP slices needs, once for all that share the lanes.
module skew #(
    parameter LANES = 4,
    parameter WIDTH = 8
) (
    input wire clk,
    input wire [LANES*WIDTH-1:0] in,
    output wire [LANES*WIDTH-1:0] out
);
    assign out[WIDTH-1:0] = in[WIDTH-1:0];

    genvar t;
    generate
        for (t = 1; t < LANES; t = t + 1) begin : lane
            reg [t*WIDTH-1:0] delay;
            always @(posedge clk) delay <= (t * WIDTH)'({delay, in[WIDTH*t+:WIDTH]});
            assign out[WIDTH*t+:WIDTH] = delay[WIDTH*(t-1)+:WIDTH];
        end
    endgenerate
endmodule
