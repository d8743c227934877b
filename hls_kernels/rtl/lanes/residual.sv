// A value in fixed point and its bias, and what they add to the residual stream, clipped to 30 bits
// each time.
module residual (
    input wire clk,
    input wire signed [31:0] value,
    input wire signed [31:0] bias,
    input wire signed [31:0] x,
    output wire signed [31:0] biased,  // without the residual stream
    output wire biased_changed,
    output wire signed [31:0] out,
    output wire changed
);
    localparam signed [31:0] MOST = 32'sd1073741823;

    reg signed [31:0] with_bias, with_x;
    wire signed [31:0] kept, x_2;
    wire kept_changed, sum_changed;

    always @(posedge clk) begin
        with_bias <= value + bias;
        with_x <= kept + x_2;
    end
    clip clip_bias (
        .clk(clk), .value(with_bias), .limit(MOST), .out(kept), .changed(kept_changed));
    delay #(.WIDTH(32), .DEPTH(2)) for_sum (.clk(clk), .in(x), .out(x_2));
    clip clip_sum (.clk(clk), .value(with_x), .limit(MOST), .out(out), .changed(sum_changed));
    delay #(.WIDTH(33), .DEPTH(2)) for_biased (
        .clk(clk), .in({kept, kept_changed}), .out({biased, biased_changed}));
    assign changed = biased_changed | sum_changed;
endmodule
