// A shift that is fixed for a row (`shifter` of ecorl_fixed.hpp): clip to limit, add half, move to
// the right, to the left, and keep the result or not.
module rounded_shift (
    input wire clk,
    input wire signed [31:0] value,
    input wire signed [31:0] limit,
    input wire signed [31:0] half,
    input wire [4:0] right,
    input wire [4:0] left,
    input wire keep,
    output wire signed [31:0] out,  // six cycles later
    output wire changed
);
    localparam ADDED = latency::CLIP + 1;
    localparam MOVED = ADDED + latency::SHIFT;
    localparam DONE = MOVED + latency::SHIFT;

    wire signed [31:0] low, half_1, moved, shifted;
    reg signed [31:0] added;
    wire changed_1, keep_done;
    wire [4:0] right_2, left_4;

    clip clipping (.clk(clk), .value(value), .limit(limit), .out(low), .changed(changed_1));
    delay #(.WIDTH(32), .DEPTH(latency::CLIP)) for_half (.clk(clk), .in(half), .out(half_1));
    always @(posedge clk) added <= low + half_1;

    delay #(.WIDTH(5), .DEPTH(ADDED)) for_right (.clk(clk), .in(right), .out(right_2));
    delay #(.WIDTH(5), .DEPTH(MOVED)) for_left (.clk(clk), .in(left), .out(left_4));
    shift_right to_right (.clk(clk), .value(added), .by(right_2), .out(moved));
    shift_left to_left (.clk(clk), .value(moved), .by(left_4), .out(shifted));

    delay #(.WIDTH(1), .DEPTH(DONE)) for_keep (.clk(clk), .in(keep), .out(keep_done));
    delay #(.WIDTH(1), .DEPTH(DONE - latency::CLIP)) for_mark (
        .clk(clk), .in(changed_1), .out(changed));
    assign out = shifted & {32{keep_done}};
endmodule
